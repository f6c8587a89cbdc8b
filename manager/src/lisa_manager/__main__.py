"""`python -m lisa_manager` is `lisa-manager`."""

from lisa_manager.cli import main

main()
