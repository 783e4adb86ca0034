"""The starting point of a build: a template of this engine, a snapshot, or an image."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sandyard.engine.builds.cache import compute_base_key
from sandyard.engine.builds.model import Layer, Recipe, State
from sandyard.engine.images.model import Report
from sandyard.engine.images.service import Images
from sandyard.engine.sandboxes.model import StartCommand, Template

REPLACED_IMAGES = {"e2bdev/base": "base", "e2bdev/code-interpreter": "code-interpreter-v1"}
"""E2B images that are replaced by templates of this engine. The SDKs build on the first by default."""
_DOCKER_HUB_PREFIX = re.compile(r"^(?:docker://)?(?:(?:index\.)?docker\.io/)?")


@dataclass(frozen=True, slots=True)
class Base:
    layer: Layer
    start: StartCommand | None = None  # inherited by a build that has none of its own


class Bases:
    def __init__(self, resolve: Callable[[str], Template], images: Images) -> None:
        self._resolve = resolve
        self._images = images

    async def find(self, recipe: Recipe, report: Report) -> Base:
        """Find the base of a build. Raises NotFoundError and everything that `Images.resolve` raises."""
        name = recipe.template or find_replacement_template(recipe.image or "")
        if name is not None:
            return _make_template_base(self._resolve(name))
        assert recipe.image is not None
        image = await self._images.resolve(recipe.image, recipe.registry, report)
        # as with E2B, a template's user is `user`, regardless of the image's user
        state = State(env=image.env)
        return Base(Layer(compute_base_key(image.layers, state, image.digest), image.layers, (), state))


def find_replacement_template(reference: str) -> str | None:
    """Return the template that replaces this image, if there is one."""
    plain = _DOCKER_HUB_PREFIX.sub("", reference.strip()).partition("@")[0].partition(":")[0]
    return REPLACED_IMAGES.get(plain)


def _make_template_base(template: Template) -> Base:
    state = State(template.env, template.defaults.user, template.defaults.workdir)
    return Base(
        Layer(compute_base_key(template.layers, state), template.layers, template.snapshots, state), template.start
    )
