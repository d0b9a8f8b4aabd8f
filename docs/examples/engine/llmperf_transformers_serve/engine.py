"""`transformers serve` of Hugging Face transformers 5."""

import json

from pytest_llmperf.extending import Api, EngineAdapter, build_spec, command_line, flags_of


class TransformersServe(EngineAdapter):
    api = 1
    name = "transformers_serve"
    package = "transformers"
    interface = Api(text=True, done=False)  # the prompt is a text, and no [DONE] follows the usage
    lists_models = False  # /v1/models lists the models of the hub's cache

    def arguments(self, spec, placement):
        module = ["-m", "transformers.cli.transformers"] if placement.environment.is_python else []
        device = "cpu" if placement.kind == "cpu" else "cuda"
        defaults = {"host": "127.0.0.1", "port": placement.port, "device": device}
        return [*module, "serve", self.served_name(placement), *command_line(defaults | flags_of(spec))]

    def served_name(self, placement):
        """The only name that the server accepts: its model and the revision."""
        return f"{placement.model.path_or_hub_id}@main"

    def post(self, spec, request, model):
        tokens = request.output_tokens
        forced = {"min_new_tokens": tokens, "max_new_tokens": tokens, "do_sample": False}
        body = {"model": model, "prompt": request.prompt, "stream": True, "generation_config": json.dumps(forced)}
        return "/v1/completions", json.dumps(body).encode()


TRANSFORMERS_SERVE = TransformersServe()


def transformers_serve(model, *, env=None, **flags):
    """What a suite imports: transformers_serve("tiny", continuous_batching=True)."""
    return build_spec("transformers_serve", model, env or {}, flags)
