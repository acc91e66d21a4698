"""Writes the parameters of a run as a state dictionary with the names of `torch.nn`."""

from torch import Tensor, nn

from ..core.contract import SequenceLayer
from ..core.errors import InputError
from ..layers import to_torch
from ..models.base_models import NeuralModel
from ..runs.run import Run
from ..storage.atomic_files import whole
from ..storage.weights import write_safetensors
from ..training.run_files import Kind, check_file

MARK = "seriatim export of torch"
STATE = Kind("a state dictionary that Seriatim exported", MARK.encode())


def export_torch(run: Run, out: str) -> None:
    """Write the parameters to a safetensors file; see `torch_state`.

    Raises:
        InputError: the model has no parameters of its own, such as n-grams; or the file exists and is of another kind.
    """
    data = run.config.data
    path = check_file(out, STATE, (data.train, data.valid, data.test))
    if not isinstance(run.model, NeuralModel) or run.answering is not run.model:
        raise InputError(f"{run.path}: has no parameters of a single network; give a run of a neural layer")
    with whole(path) as aside:
        write_safetensors(torch_state(run.model), aside, _facts(run))


def _facts(run: Run) -> dict[str, str]:
    """Return what the tensors do not say."""
    facts = {"format": "pt", "written by": MARK, "data.unit": run.config.data.unit}
    activation = run.config.model.options.get("activation")
    return facts | ({"nonlinearity": activation} if activation in ("tanh", "relu") else {})


def torch_state(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters by name; those of recurrent layers as `torch.nn.RNN`, `LSTM` and `GRU` call them.

    A stack of such layers in the attribute ``layer`` gives ``layer.weight_ih_l0`` and so on, as one module of
    `torch.nn` in that attribute has it. All other parameters keep their names. Tied parameters are written under each
    of their names.
    """
    tensors: dict[str, Tensor] = {}
    done: list[str] = []
    for name, module in model.named_modules():
        if not isinstance(module, SequenceLayer) or name.startswith(tuple(done)):
            continue
        try:
            twin = to_torch(module)
        except ValueError:  # torch.nn has no such module
            continue
        done.append(f"{name}.")
        tensors |= {f"{name}.{key}": value for key, value in twin.state_dict().items()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not name.startswith(tuple(done)):
            tensors[name] = parameter.detach()
    return {name: value.cpu().clone().contiguous() for name, value in tensors.items()}
