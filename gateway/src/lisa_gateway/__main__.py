"""`python -m lisa_gateway` is `lisa-gateway`."""

from lisa_gateway.cli import main

main()
