"""What a lambda of another LeJEPA code is worth here, and in the others.

    python train/conventions.py --lamb 0.05 --from lightly
    python train/conventions.py --lamb 10 --from eb_jepa --global-views 2 --local-views 0 --dim 128
    python train/conventions.py --page train/CONVENTIONS.md      the page that says it all, made anew

A tilde marks the nearest value where no exact one exists, a dash that there is none. The factor of the learning rate is
for plain SGD; Adam and AdamW do not feel a factor of the loss.
"""

from dataclasses import dataclass
from pathlib import Path

from aotadmm_timm.cli import option, parse, run
from aotadmm_timm.runs.comparison import as_markdown, as_text
from aotadmm_timm.runs.folder import write_text
from aotadmm_timm.theory.convention_tables import choices, published, sources, translations
from aotadmm_timm.theory.conventions import find


@dataclass(frozen=True)
class Config:
    lamb: float = option(0.05, "weight of the regularizer in the code that --from names")
    from_: str = option("lejepa-paper", "the code: a name of train/CONVENTIONS.md")
    batch: int = option(256, "batch over all processes", unit="images")
    global_views: int = option(2, "global views of an image")
    local_views: int = option(6, "local views of an image")
    dim: int = option(64, "width of the embedding")
    processes: int = option(1, "processes that share the batch")
    page: str | None = option(None, "write the page of all conventions to this file instead")


PAGE = """# What a lambda means, from code to code

*Made by `python train/conventions.py --page train/CONVENTIONS.md`.*

A LeJEPA loss is made of choices, and public codes choose differently: a lambda of one is not a lambda of another. Below
is what each does, what its published lambda is here, and what users tripped over. For any other number:

    python train/conventions.py --lamb 0.05 --from lightly

## The choices

A dot: as in the first line. "each": one test for each view, then the mean; "pooled": one test on the rows of all views.
"alone": with several processes, each tests its own rows; "alone, scaled": and multiplies by their number.

{choices}

Slices change the noise of a step, not what is minimized. So do directions that differ between processes (VISReg), as
long as all rows are gathered. Factor N is why lambdas differ by hundreds: with it the regularizer is about 1 at the
optimum for any batch, and its pull against the invariance grows with the batch, so that a lambda belongs to a batch
size too; without it neither holds. The integral of the paper's Algorithm 1 is exactly `SIGReg(num_knots=9, t_max=5)`
here.

## Published lambdas, here

What `train/lejepa.py` takes, with its flags. "~": the nearest, not the same loss; "-": none. SGD's learning rate takes
the factor; AdamW's stays, a factor of the loss cancels in it.

{published}

Equivalence means that the gradients on the same embeddings along the same directions are parallel; the tests check it
to 1e-9 for every pair, and that no lambda makes them parallel where none is given.

## What users tripped over

**Which features are evaluated, the projector's or the backbone's?** (galilai-group/lejepa 17, 42) The loss is of the
projector's output, and the theory speaks of what the loss sees; every published probe is on what comes before it. So
here: `encoder/` and all scores are the backbone's. `--projector none` puts the loss on the features themselves.

**Which prediction loss?** (46, 11, 31) The paper's Eq. 6 compares all views with each global view, Eq. 7 with their
mean. They are not equal: they differ by the variance of the global views, which Eq. 6 counts in addition. Its Algorithm
2 is Eq. 7 with a mean over dimensions where the equation has a sum. The minimal page has no local views and takes the
mean of all. Here: Eq. 7 with the mean over dimensions; `--target all` for the other. VISReg prints that its target is
detached; in its code it carries gradient.

**A minimum learning rate above the peak.** (29) The minimal page ends its cosine at 1e-3, under its own peak of 2e-3.
With the README's 5e-4 the same line makes the rate rise. Here `--min-lr` above `--lr` is refused, and a thousandth of
it is the default, as the README says.

**It does not reproduce.** (20, 23, 28, 29, 41, 44, 50) Reported: 60 to 65 % on CIFAR-100 where the paper has 70, 58 to
60 on Flowers-102 where it has 74.6, 82 on ImageNet-100 with ResNet-50 where it has 83. For none of these are command,
configuration, curve and weights published together, so nobody can say which choice above it is. What was measured here
is in [RESULTS.md](RESULTS.md), each row with its command and commit, and it does not reach the paper either.

**Where are the weights?** (3) LeJEPA's are not published as far as that thread goes (July 2026); VISReg's are. Here
`timm.create_model("aot_admm_tiny.lejepa_cifar10", pretrained=True)` and three more are in the package.

**Pooled or per view, sum or convex?** (stable-pretraining 413; lejepa 45) The authors: per view, any leading dimension
of the input is averaged over. stable-pretraining pools and adds; `--pool-views` does the first, and the table above the
second. Its all-reduce returns the average and the code drops it, so on several processes each tests its own rows, and
the value is multiplied by their number.

**Which views are regularized?** (lightly 2002, pull request 2023) lightly compared and regularized the local views
only, from May to August 2026 (pull requests 1926 and 2023). No lambda makes up for it: with such a version, expect
another loss.

**Several processes.** lightly's `gather_distributed` is off by default: each process then tests its own rows, a smaller
N. Here value and gradient are those of one process on all rows.

## Where it was read

{sources}

In lejepa, stable-pretraining and VISReg numbers are of issues and pull requests of those repositories.
"""


def page() -> str:
    """The page of all conventions, Markdown."""
    return PAGE.format(
        choices=as_markdown(choices()),
        published=as_markdown(published()),
        sources="\n".join(f"- {line}" for line in sources()),
    )


def main() -> None:
    cfg = parse(Config, description=__doc__)
    if cfg.page:
        write_text(Path(cfg.page), page())
        return
    views = (cfg.global_views, cfg.local_views)
    rows = translations(cfg.lamb, find(cfg.from_), batch=cfg.batch, views=views, dim=cfg.dim, processes=cfg.processes)
    print(
        f"lambda {cfg.lamb:g} of {cfg.from_}, {views[0]} + {views[1]} views, batch {cfg.batch}, {cfg.dim} dimensions:\n"
    )
    print(as_text(rows))


if __name__ == "__main__":
    run(main)
