"""`/admin/instances`: what answers requests, registered, changed, drained and removed while the gateway runs.

What comes from outside is checked before the registry sees it: the address (`runtime.addresses`) and the variable that
is to hold its key, since naming any variable and any address would send the gateway's environment anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from headrace.config.administration import may_hold_a_key
from headrace.config.instances import InstanceSection
from headrace.errors import HeadraceError, error_for, instance_not_found, invalid_request
from headrace.model import Instance, InstanceView
from headrace.runtime.addresses import AddressRefused, Allowed, check
from headrace.runtime.registry import Registered, Registry
from headrace.server.admin.ports import AdminPort
from headrace.server.admin.shapes import InstanceAnswer, InstanceIn, InstanceOut, InstancePatch, Instances, Removed
from headrace.server.admin.showing import instance_out, models_of

_NOT_KEPT = "This could not be written to the file and is forgotten when headrace is restarted; the log says why."


def instance_routes(port: AdminPort, listed: Allowed, key_variables: Collection[str]) -> APIRouter:
    """The routes. `listed` is where instances may be, `key_variables` which variables may hold their keys."""
    desk = _Desk(port, listed, key_variables)
    router = APIRouter(prefix="/admin/instances", tags=["instances"])

    @router.get("", summary="All instances and how they are doing")
    async def list_instances() -> Instances:
        return Instances(instances=desk.all())

    @router.post("", status_code=201, summary="Register an instance")
    async def add_instance(given: InstanceIn) -> InstanceAnswer:
        return await desk.add(given)

    @router.get("/{id}", summary="One instance")
    async def show_instance(id: str) -> InstanceAnswer:  # noqa: A002 - its name in the path
        return InstanceAnswer(instance=desk.one(id))

    @router.patch("/{id}", summary="Change an instance; what was learned of it stays while its address does")
    async def change_instance(id: str, given: InstancePatch) -> InstanceAnswer:  # noqa: A002
        return await desk.change(id, given)

    @router.delete("/{id}", summary="Remove an instance; what runs there ends there")
    async def remove_instance(id: str) -> Removed:  # noqa: A002
        warnings = desk.registry.remove(desk.known(id).instance.id)
        return Removed(id=id, warnings=[*warnings, *await kept(port)])

    @router.post("/{id}/drain", summary="Send nothing new there; what runs ends")
    async def drain_instance(id: str) -> InstanceAnswer:  # noqa: A002
        desk.registry.drain(desk.known(id).instance.id)
        return await desk.answer(id)

    @router.post("/{id}/undrain", summary="Send to it again")
    async def undrain_instance(id: str) -> InstanceAnswer:  # noqa: A002
        desk.registry.undrain(desk.known(id).instance.id)
        return await desk.answer(id)

    return router


class _Desk:
    """Between the routes and the registry."""

    def __init__(self, port: AdminPort, listed: Allowed, key_variables: Collection[str]) -> None:
        self._port = port
        self._listed = listed
        self._key_variables = key_variables

    @property
    def registry(self) -> Registry:
        """The instances."""
        return self._port.registry

    def all(self) -> list[InstanceOut]:
        """Every instance as it is shown."""
        views = self._views()
        return [instance_out(entry, views.get(entry.instance.id)) for entry in self.registry.instances]

    def one(self, name: str) -> InstanceOut:
        """One of them. Raises HeadraceError (404)."""
        return instance_out(self.known(name), self._views().get(name))

    def known(self, name: str) -> Registered:
        """The registered instance of that id. Raises HeadraceError (404)."""
        return find(self.registry, name)

    async def add(self, given: InstanceIn) -> InstanceAnswer:
        """Check and register. Raises HeadraceError for what may not be (400) or is there already (409)."""
        words = await self._check(given, ())
        instance = given.as_instance(free_id(self.registry, given))
        return await self.answer(instance.id, *words, *self.registry.add(instance, given.source))

    async def change(self, name: str, given: InstancePatch) -> InstanceAnswer:
        """Check and change. Raises HeadraceError, or RequestValidationError for keys that do not fit together."""
        before = self.known(name).instance
        section = _merged(before, given)
        held = () if before.api_key_env is None else (before.api_key_env,)
        words = await self._check(section, held if section.address == before.address else ())
        self.known(name)  # it may have gone while its address was looked up
        return await self.answer(name, *words, *self.registry.replace(name, section.as_instance(name)))

    async def answer(self, name: str, *warnings: str) -> InstanceAnswer:
        """What has just been done, once it is written; while that takes, somebody else may remove the instance."""
        shown = self.one(name)
        return InstanceAnswer(instance=shown, warnings=[*warnings, *await kept(self._port)])

    def _views(self) -> Mapping[str, InstanceView]:
        return {view.id: view for view in self._port.snapshot().instances}

    async def _check(self, section: InstanceSection, held: Collection[str]) -> tuple[str, ...]:
        """What could not be looked at. Raises HeadraceError (400). `held`: variables that it has already."""
        words: tuple[str, ...] = ()
        metrics = section.metrics if section.metrics is not None and urlsplit(section.metrics).scheme else None
        for param, address in (("address", section.address), ("metrics", metrics)):
            if not address:
                continue
            try:
                words += await check(address, self._listed)
            except AddressRefused as refused:
                raise _refused(f"{param}: {refused}.", param, "address_refused") from None
        self._check_variable(section.api_key_env, held)
        return words

    def _check_variable(self, name: str | None, held: Collection[str]) -> None:
        if name is None or name in held:
            return
        if not may_hold_a_key(name, self._key_variables):
            message = f"api_key_env: {name} may not be named here. List it in admin.key_variables of the configuration."
            raise _refused(message, "api_key_env", "variable_refused")


async def kept(port: AdminPort) -> tuple[str, ...]:
    """Have a change written; what to say if it cannot be."""
    return () if await port.saved() else (_NOT_KEPT,)


def find(registry: Registry, name: str) -> Registered:
    """The registered instance of that id. Raises HeadraceError (404)."""
    for entry in registry.instances:
        if entry.instance.id == name:
            return entry
    raise error_for(instance_not_found(name))


def free_id(registry: Registry, given: InstanceSection) -> str:
    """An id for an instance that came without: the engine's name and the first free number."""
    taken = {entry.instance.id for entry in registry.instances}
    number = 1
    while f"{given.engine}-{number}" in taken:
        number += 1
    return f"{given.engine}-{number}"


def _merged(before: Instance, given: InstancePatch) -> InstanceSection:
    """The instance with what is given put over it. Raises RequestValidationError."""
    fields: dict[str, object] = {
        "id": before.id,
        "address": before.address,
        "engine": before.engine.value,
        "models": models_of(before),
        **{
            name: getattr(before, name)
            for name in InstanceSection.model_fields
            if name not in ("id", "address", "engine", "models", "resume")
        },
        "resume": "on" if before.resume else "off",
        "metadata": dict(before.metadata),
        **given.model_dump(exclude_unset=True),
    }
    try:
        return InstanceSection.model_validate(fields)
    except ValidationError as error:
        problems = [{**problem, "loc": ("body", *problem["loc"])} for problem in error.errors(include_url=False)]
        raise RequestValidationError(problems, body=fields) from None


def _refused(message: str, param: str, code: str) -> HeadraceError:
    return error_for(invalid_request(message, param=param, code=code))
