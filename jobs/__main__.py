"""`python -m jobs`: the command line without its installed script."""

from __future__ import annotations

from jobs.cli import main

main()
