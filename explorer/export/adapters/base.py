"""The contract that adapters keep is the dataset's own: `explorer.export.dataset.adapter`."""

from explorer.export.dataset.adapter import (
    Adapter as Adapter,
)
from explorer.export.dataset.adapter import (
    File as File,
)
from explorer.export.dataset.adapter import (
    Layout as Layout,
)
from explorer.export.dataset.adapter import (
    Line as Line,
)
from explorer.export.dataset.adapter import (
    Piece as Piece,
)
from explorer.export.dataset.adapter import (
    Row as Row,
)
from explorer.export.dataset.adapter import (
    Subject as Subject,
)
