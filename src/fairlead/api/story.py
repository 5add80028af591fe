"""GET /v1/story: the captions of the demo; on any other server there is none."""

from typing import Any

from fairlead.api.endpoint import Call, Routes
from fairlead.api.service import Service
from fairlead.api.shapes import Shape
from fairlead.engine.gpu import NotFound

routes = Routes()


class StoryLink(Shape):
    """A view that shows what a caption is about."""

    path: str
    text: str


class StoryAct(Shape):
    """An act that happened: what, when, after how many seconds, and where to look."""

    number: int
    round: int
    act: str
    title: str
    text: str
    time: str
    after_s: float
    waited_s: float
    """Of `after_s`: what the story waited on purpose."""
    simulated: bool
    """Real decision code on a simulated node or service."""
    links: list[StoryLink]


class StoryNext(Shape):
    """The act that is awaited."""

    act: str
    title: str
    text: str


class StoryTitle(Shape):
    """An act of every round."""

    act: str
    title: str


class StoryDocument(Shape):
    """The story so far, oldest act first."""

    began: str
    round: int
    programme: list[StoryTitle]
    acts: list[StoryAct]
    next: StoryNext | None


@routes("GET /v1/story", StoryDocument, errors=(404,))
def story(service: Service, call: Call) -> dict[str, Any]:
    """Tell what happened in the demo; 404 where this is no demo."""
    if service.story is None:
        raise NotFound("story", "demo")
    return service.story.document()
