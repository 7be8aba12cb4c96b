"""`kb eval`: how well searches answer questions whose answers are known."""

from __future__ import annotations

from kb_cli.commands import API_KEY, COUNT, EMBEDDER, JSON, POSITIVE, SETTINGS, Command, arg
from kb_cli.parts import Part

PART = Part(commands=(
    Command("eval", "prove", "kb_cli.evaluation.evaluation_command:run",
            "measure search quality on queries with known answers", (
        *SETTINGS,
        arg("--engine", dest="engine_url", metavar="URL",
             help="URL of the engine, for a file of questions (default: KB_ENGINE_URL)"),
        API_KEY,
        JSON,
        EMBEDDER,
        arg("dataset", nargs="?", metavar="DATASET",
             help="folder in BEIR's layout, ingested into a separate base; or file of questions and "
             "documents, for a running engine"),
        arg("--from-base", action="store_true",
             help="take questions from the headings of a running engine's documents"),
        arg("--questions", type=POSITIVE, default=200, metavar="N",
             help="maximum number of questions from the base (default 200)"),
        arg("--queries", choices=("all", "odd", "even"), default="all",
             help="use all queries, or those at odd or even positions, counted from 1"),
        arg("--unanswerable", metavar="FILE", help="file of questions without answers, to measure weak"),
        arg("--output", metavar="FILE", help="write a line for each question to this file, to compare runs"),
        arg("--plot", metavar="FILE", help="plot the results to this PNG file"),
        arg("--compare", nargs=2, metavar=("RUN1", "RUN2"),
             help="list the questions with better and worse results"),
        arg("--seed", type=COUNT, default=7, metavar="N",
             help="seed of the confidence intervals (default 7)"),
    ), ("engine",)),
))  # fmt: skip
