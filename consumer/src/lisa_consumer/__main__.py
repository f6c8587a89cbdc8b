"""`python -m lisa_consumer` is `lisa-consumer`."""

from lisa_consumer.cli import main

main()
