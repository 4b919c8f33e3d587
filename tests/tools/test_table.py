"""A table as files."""

from pathlib import Path

from tools.table import Table


def test_a_table_is_written_as_csv_and_markdown(tmp_path: Path) -> None:
    table = Table("A title", ["method", "value"])
    table.add("one, two", "3")
    table.write(tmp_path / "new")
    assert (tmp_path / "new" / "table.csv").read_text() == 'method,value\n"one, two",3\n'
    text = (tmp_path / "new" / "table.md").read_text()
    assert text == "**A title**\n\n| method | value |\n| --- | ---: |\n| one, two | 3 |\n"
