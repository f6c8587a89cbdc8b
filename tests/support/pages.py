"""Reads pages as a browser without scripts: follows links, fills in and sends forms, and checks each page."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

import httpx

__all__ = ["Browser", "Form", "Page"]

_VOID = {"meta", "wbr", "link", "input", "br"}


@dataclass
class Form:
    """A form and the values of its fields."""

    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)
    buttons: list[str] = field(default_factory=list)


class Page(HTMLParser):
    """One answered page."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__()
        self.status = response.status_code
        self.url = str(response.url)
        self.headers = response.headers
        self.html = response.text
        self.links: list[str] = []
        self.forms: list[Form] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self._open: list[str] = []
        self._form: Form | None = None
        self._in_textarea: str | None = None
        self._select: str | None = None
        self._option, self._is_chosen, self._option_has_value = "", False, False
        self.text = ""
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Takes a tag."""
        given = {name: value or "" for name, value in attrs}
        self.tags.append((tag, given))
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "a":
            self.links.append(given.get("href", ""))
        elif tag == "form":
            self._form = Form(given["action"], given.get("method", "get"))
            self.forms.append(self._form)
        elif self._form is not None:
            self._take_field(tag, given)

    def _take_field(self, tag: str, given: dict[str, str]) -> None:
        assert self._form is not None
        if tag == "input" and "name" in given:
            self._form.fields[given["name"]] = given.get("value", "")
        elif tag == "textarea":
            self._in_textarea = given["name"]
            self._form.fields[given["name"]] = ""
        elif tag == "select":
            self._select = given["name"]
            self._form.fields[self._select] = ""
        elif tag == "option":
            self._option, self._is_chosen = given.get("value", ""), "selected" in given
            self._option_has_value = "value" in given
        elif tag == "button":
            self._form.buttons.append(given.get("aria-label", ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Takes a tag of a picture without content."""
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    @property
    def query(self) -> dict[str, str]:
        """The parameters of its URL."""
        return dict(httpx.URL(self.url).params)

    def handle_endtag(self, tag: str) -> None:
        """Ends a tag; fails where tags cross."""
        if tag == "option" and self._select and self._form and (self._is_chosen or not self._form.fields[self._select]):
            self._form.fields[self._select] = self._option
        assert self._open.pop() == tag, (tag, self.url)
        if tag == "form":
            self._form = None
        if tag == "textarea" and self._in_textarea and self._form:
            # Browsers drop the first end of a line.
            name = self._in_textarea
            self._form.fields[name] = self._form.fields[name].removeprefix("\n")
            self._in_textarea = None

    def handle_data(self, data: str) -> None:
        """Takes text."""
        if self._open[-1:] not in (["script"], ["style"]):
            self.text += data
        if self._open[-1:] == ["option"] and not self._option_has_value:
            self._option += data
        if self._in_textarea and self._form:
            self._form.fields[self._in_textarea] += data

    def form(self, action: str) -> Form:
        """The first form that is sent there."""
        return next(each for each in self.forms if each.action.partition("?")[0] == action)

    def check(self) -> None:
        """Fails unless nothing of the page comes from elsewhere, or runs inline."""
        assert not self._open, self._open
        policy = self.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy
        ids = [given["id"] for _, given in self.tags if "id" in given]
        assert len(ids) == len(set(ids)), sorted(ids)
        for tag, given in self.tags:
            assert tag != "style"
            assert tag != "script" or given.get("src", "").startswith("static/")
            assert not [name for name in given if name.startswith("on") or name == "style"], (tag, given)
            for name in ("src", "href", "action", "sse-connect"):
                assert "//" not in given.get(name, "").partition("?")[0], (tag, given)
                assert not given.get(name, "").startswith("/"), (tag, given)
        # What a screen reader says.
        labelled = {given["for"] for tag, given in self.tags if tag == "label" and "for" in given}
        assert [given["lang"] for tag, given in self.tags if tag == "html"] == ["en"]
        assert sum(tag == "h1" for tag, _ in self.tags) == 1
        assert sum(tag == "main" for tag, _ in self.tags) == 1
        assert labelled <= set(ids)


class Browser:
    """One browser without scripts."""

    def __init__(self, client: httpx.Client, **headers: str) -> None:
        self.client = client
        self._headers = headers

    def get(self, path: str = "", **query: Any) -> Page:
        """A page, checked."""
        response = self.client.get(path, params=query or None, headers=self._headers, follow_redirects=True)
        page = Page(response)
        page.check()
        return page

    def send(self, page: Page, form: Form, **changes: str) -> Page:
        """Sends a form as a browser does, and follows to the next page."""
        url = urljoin(page.url, form.action)
        origin = str(httpx.URL(page.url).copy_with(raw_path=b"/")).rstrip("/")
        headers = {"origin": origin, "sec-fetch-site": "same-origin"} | self._headers
        response = self.client.post(url, data=form.fields | changes, headers=headers, follow_redirects=True)
        after = Page(response)
        after.check()
        return after

    def post(self, path: str, headers: dict[str, str] | None = None, **fields: str) -> httpx.Response:
        """A form from nowhere."""
        return self.client.post(path, data=fields, headers=self._headers | (headers or {}))
