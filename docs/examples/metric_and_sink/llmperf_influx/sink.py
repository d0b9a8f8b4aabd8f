"""InfluxDB line protocol: a line per measurement and run, with each metric that has a value as a field."""

from pytest_llmperf.extending import Sink


def escaped(tag):
    """A tag value; comma, equals sign and space are escaped by a backslash."""
    return "".join(f"\\{character}" if character in ",= " else character for character in tag)


def files(tests):
    lines = []
    for test in tests:
        for measurement in test.measurements:
            for number, run in enumerate(measurement.runs):
                values = {name: value for name, value in run.metrics.all().items() if value is not None}
                fields = ",".join(f"{name}={value!r}" for name, value in sorted(values.items()))
                if fields:
                    tags = f"test={escaped(test.test)},verdict={test.verdict.value},run={number}"
                    lines.append(f"llmperf,{tags} {fields}")
    return {"": "".join(f"{line}\n" for line in lines).encode()}


INFLUX = Sink(api=1, name="influx", files=files)
