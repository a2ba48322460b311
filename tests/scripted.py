"""`python -m tests.scripted SCRIPT WORD...`: as `python -W error -c`, for processes that `tests.preforked` forks."""

import sys
import warnings

if __name__ == "__main__":
    warnings.simplefilter("error")
    script = sys.argv.pop(1)
    exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})
