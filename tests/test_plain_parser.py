"""Commands without jsonargparse say what is wrong on one line."""

import pytest

from lfl.plain_parser import PlainParser


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--titel", "x"], "unknown argument `--titel`; did you mean `--title`?"),
        (["--titel=x"], "unknown argument `--titel`; did you mean `--title`?"),
        (["--zzz"], "unknown argument `--zzz`."),
        (["--title"], "`--title` needs a value."),
        (["--names"], "`--names` needs a value."),
        (["--x", "c"], "`--x c` must be one of 'a', 'b'."),
        (["--jobs", "two"], "`--jobs two` must be a whole number."),
        (["--tit", "x"], "unknown argument `--tit`; did you mean `--title`?"),
    ],
)
def test_errors_are_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = PlainParser("lfl draw", prog="lfl draw")
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--title")
    parser.add_argument("--names", nargs="+")
    parser.add_argument("--x", choices=("a", "b"))
    parser.add_argument("--jobs", type=int)
    with pytest.raises(SystemExit) as end:
        parser.parse_args(words)
    assert end.value.code == 2
    assert capsys.readouterr().err == f"lfl draw: error: {said}\n"
