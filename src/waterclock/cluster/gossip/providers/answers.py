"""What an API over HTTP answers, page by page, and what is wrong with it in one line."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from requests import JSONDecodeError, RequestException, Response, Session

from waterclock.cluster.gossip.providers import one_line

TIMEOUTS_S: Final = (2, 5)
"""To connect, and to wait for bytes."""
PAGES_MAX: Final = 100

Answer: TypeAlias = Mapping[str, Any]


class Question(NamedTuple):
    """What is asked for next."""

    url: str
    parameters: Mapping[str, str]


def pages(
    token: str, first: Question, next_of: Callable[[Answer], Question | None]
) -> Iterator[Answer]:
    """Give the pages; `next_of` says of a page how to ask for the next. Raises OSError."""
    question: Question | None = first
    with Session() as session:
        session.headers["Authorization"] = f"Bearer {token}"
        for _ in range(PAGES_MAX):
            if question is None:
                return
            page = _page(session, question)
            yield page
            question = next_of(page)
    raise OSError(f"there are more than {PAGES_MAX} pages: ask for fewer instances")


def _page(session: Session, question: Question) -> Answer:
    try:
        answer = session.get(question.url, params=dict(question.parameters), timeout=TIMEOUTS_S)
    except RequestException as error:
        raise OSError(one_line(error)) from error
    said = _object_in(answer)
    if not answer.ok:
        problem = said.get("error")
        reason = problem.get("message") if isinstance(problem, dict) else problem
        raise OSError(f"{answer.status_code} {one_line(reason)}")
    return said


def _object_in(answer: Response) -> Answer:
    try:
        said = answer.json()
    except JSONDecodeError:
        said = None
    if not isinstance(said, dict):
        raise OSError(f"{answer.status_code} without a JSON object from {one_line(answer.url)}")
    return said
