"""The commands of `lisa-gateway`."""

from json import dumps
from typing import Annotated

import typer
from pydantic import SecretStr, ValidationError

from lisa_common.cli.options import JsonFlag, with_settings
from lisa_common.cli.output import print_json, say
from lisa_common.cli.waiting import WaitOption, wait_s
from lisa_common.errors import InvalidInput, InvalidSettings, Needs
from lisa_common.signals import run_signalled
from lisa_common.validation import check_name, expected_by
from lisa_gateway.access import Grant, Role, hash_of, new_token
from lisa_gateway.push import PushSettings, Target
from lisa_gateway.push.target import check_url
from lisa_gateway.settings import GatewaySettings

__all__ = ["openapi", "push", "run", "token"]


@with_settings(GatewaySettings)
def run(*, wait: WaitOption = None, settings: GatewaySettings) -> None:
    """Serves HTTP until SIGTERM or SIGINT, then stops gracefully. Any number may run, behind any balancer.

    While it waits for the server, it is alive and not ready, and answers calls with 503.
    """
    patience_s = wait_s(wait)
    # Imported here, as only this command needs a server.
    from lisa_gateway.serving import loop_factory, serve  # noqa: PLC0415

    run_signalled(serve(settings, patience_s=patience_s), loop_factory=loop_factory())


@with_settings(GatewaySettings)
def openapi(*, settings: GatewaySettings) -> None:
    """Prints the OpenAPI 3.1 document of /v1, which a gateway of these settings serves at /v1/openapi.json."""
    from lisa_gateway.v1 import openapi as describe  # noqa: PLC0415

    print_json(describe(settings.root_path))


def token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose token it is.")],
    *,
    role: Annotated[
        list[Role],
        typer.Option(
            metavar="ROLE", help=f"What it allows: {', '.join(Role)}; repeat the option for more.", show_default=False
        ),
    ],
    topic: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="For which topics, as in 'orders*'; by default all.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Makes a bearer token. It is shown once: settings hold only its hash."""
    text = new_token()
    grant = {"name": name, "tokens": [hash_of(text)], "roles": [str(each) for each in role], "topics": topic or ["*"]}
    try:
        Grant(**grant)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInput(str(first["loc"][0]), first["input"], expected_by(first)) from None
    if json:
        print_json({"token": text, "grant": grant})
        return
    say(f"token: {text}\n\nin lisa.toml of each gateway:\n\n[[gateway.grants]]")
    for field, value in grant.items():
        say(f"{field} = {dumps(value)}")


@with_settings(PushSettings)
def push(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC", help="Whose messages to push.")] = None,
    url: Annotated[str | None, typer.Argument(metavar="URL]", help="Where to post them.")] = None,
    *,
    reject_4xx: Annotated[
        bool, typer.Option("--reject-4xx", help="Make a message garbage at an answer of 4xx but 408, 425 and 429.")
    ] = False,
    wait: WaitOption = None,
    settings: PushSettings,
) -> None:
    """Posts each message to a URL when it is due: that of the command line, or those of [[push.targets]].

    An answer of 2xx acks a message, any other is a failed attempt. 429 and 503 with Retry-After are a pause of the
    receiver, which spends no attempt. Runs until SIGTERM or SIGINT. Any number may run at once.
    """
    patience_s = wait_s(wait)
    if topic is not None:
        if url is None:
            raise Needs("topic", topic, "URL")
        # The URL first: if the two are swapped, the other check would show it.
        secret_url = SecretStr(check_url(url))
        check_name("topic", topic)
        target = Target(topic=topic, url=secret_url, concurrency=settings.concurrency, reject_4xx=reject_4xx)
        settings = settings.model_copy(update={"targets": (target,)})
    elif reject_4xx:
        raise Needs("--reject-4xx", reject_4xx, "topic and URL; targets have a setting for it")
    try:
        from lisa_gateway.push.pusher import run as push_until_stopped  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "httpx":
            raise
        raise InvalidSettings("pushing needs more packages: pip install 'lisa-gateway[push]'") from None
    push_until_stopped(settings, patience_s=patience_s)
