"""messages.txt has a section for tests that exist, and for no other test."""

from pathlib import Path

UNIT = Path(__file__).parent


def test_every_section_of_messages_names_an_existing_test(stored_messages):
    assert stored_messages
    for test in stored_messages:
        path, _, name = test.partition("::")
        function = name.rpartition("::")[2].partition("[")[0]
        assert f"def {function}(" in (UNIT / path).read_text(encoding="utf-8"), test
