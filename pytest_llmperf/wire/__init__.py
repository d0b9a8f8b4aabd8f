"""From bytes to facts: HTTP framing, server-sent events, OpenAI-style completions. Pure: no socket, no clock."""
