"""Model, optimiser and what else is part of a training run as one state with the same names under every layout.

Imports torch. Plain modules, DDP and FSDP2 have different names for the same parameter, and optimisers number them;
torch.distributed.checkpoint.state_dict gives all of them one name, so a run may continue under another layout.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


class TrainState:
    """What is saved and restored: ``TrainState(model, optimizer, scheduler=scheduler, epoch=3)``.

    ``others``: objects with ``state_dict`` and ``load_state_dict`` (schedulers, data loaders), or plain values, which
    are attributes: ``state.epoch``. An object must have the same value in every rank, or a name of its own in each.
    """

    def __init__(self, model: Any, optimizer: Any = (), **others: Any) -> None:
        self._model = model
        self._optimizer = optimizer
        self._others = others

    def __getattr__(self, name: str) -> Any:
        others = self.__dict__.get("_others", {})
        if name not in others:
            raise AttributeError(name)
        return others[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            self._others[name] = value

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            "others": {name: _state_of(v) for name, v in self._others.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self._model,
            self._optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        for name, value in state["others"].items():
            if hasattr(self._others.get(name), "load_state_dict"):
                self._others[name].load_state_dict(value)
            else:
                self._others[name] = value


def _state_of(value: Any) -> Any:
    return value.state_dict() if hasattr(value, "state_dict") else value
