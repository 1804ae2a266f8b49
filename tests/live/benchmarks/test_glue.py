"""Heads of a classifier of sentences, on a small random BERT and sentences made here."""

import random

import pytest

torch = pytest.importorskip("torch", reason="the benchmark is of PyTorch models")
pytest.importorskip("transformers", reason="BERT is theirs")

WORDS = ["good", "bad", "film", "plot", "a", "the", '"', "n't", "fine", "NA", "dull", "null"]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory, checkout):
    """A BERT of 2 × 4 heads and three classes, with its tokenizer, as saved."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    vocabulary = folder / "vocab.txt"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary.write_text("\n".join([*special, *(word.lower() for word in WORDS)]))
    tokenizer = BertTokenizerFast(vocab=str(vocabulary))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=16,
        max_position_embeddings=32,
        num_labels=3,
        initializer_range=0.5,
    )
    model = BertForSequenceClassification(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    """Pairs of sentences in the files of MNLI, other columns among them."""
    folder, generator = tmp_path_factory.mktemp("mnli"), random.Random(0)
    for name, count in (("train.tsv", 150), ("dev_matched.tsv", 30)):
        lines = ["index\tsentence1\tlabel1\tsentence2\tgold_label"]
        for number in range(count):
            pair = [" ".join(generator.choices(WORDS, k=generator.randint(1, 6))) for _ in "ab"]
            label = ("contradiction", "entailment", "neutral")[number % 3]
            lines.append(f"{number}\t{pair[0]}\tneutral\t{pair[1]}\t{label}")
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_the_command_prints_accuracies_beside_published_ones(model_folder, sentences, capsys):
    from benchmarks.heads.glue import main

    counts = ("--counts", "2", "6", "--examples", "120")
    main(["mnli", "--model", str(model_folder), "--data", str(sentences), *counts])
    printed, told = capsys.readouterr()
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines() if line[:3] != "| -"]
    table = {row[0]: row[1:] for row in rows[:4]}
    assert table["heads off"] == [
        *("Greedy-Gnorm", "Taylor", "attribution", "choose_heads", "… refitted")
    ]
    for count in ("2", "6"):
        assert table[count][:3] == ["—"] * 3
        assert all(0 <= float(value) <= 1 for value in table[count][3:])
    assert "2602.04491" in printed
    assert told.count("passes") == 5  # the whole model, and two counts without and with refit


def test_accuracies_are_those_of_the_model_without_the_heads(model_folder, sentences):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    import pathkernel as pk
    from benchmarks.heads import glue

    model = AutoModelForSequenceClassification.from_pretrained(model_folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    task = glue.TASKS["mnli"]
    train = glue.draw_balanced(glue.read_sentences(sentences / "train.tsv", task), 120, seed=1)
    test = glue.read_sentences(sentences / "dev_matched.tsv", task)
    assert train["class"].value_counts().tolist() == [40, 40, 40]
    choosing, testing = (
        glue.make_batches(part, tokenizer, task, 16, "cpu") for part in (train, test)
    )
    assert sum(len(classes) for _, classes in testing) == 30
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    whole, plain, refitted = glue.measure(model, choosing, testing, [3])
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert whole["accuracy"] == glue.accuracy(model, testing)
    for row, refit in ((plain, False), (refitted, True)):
        choice = pk.choose_heads(
            *(model, choosing, lambda batch: (model(**batch[0]).logits, batch[1]), 3),
            loss="cross-entropy",
            refit=refit,
        )
        with pk.heads_off(model, choice):
            assert row["accuracy"] == pytest.approx(glue.accuracy(model, testing))
        assert row["passes"] == choice.passes


def test_published_numbers_stand_beside_their_counts():
    from benchmarks.heads.glue import TASKS, write_report

    rows = [{"off": 72, "refit": refit, "accuracy": 0.5 + refit / 4} for refit in (False, True)]
    assert "| 72 | 0.897 | 0.891 | 0.913 | 0.500 | 0.750 |" in write_report(rows, TASKS["sst2"])


def test_sentences_with_quotation_marks_and_null_are_read_as_they_are(tmp_path):
    from benchmarks.heads.glue import TASKS, read_sentences

    texts = ['"one', "NA", 'null "', "n/a"]
    lines = ["sentence\tlabel", *(f"{text}\t{number % 2}" for number, text in enumerate(texts))]
    (tmp_path / "dev.tsv").write_text("\n".join(lines), encoding="utf-8")
    frame = read_sentences(tmp_path / "dev.tsv", TASKS["sst2"])
    assert frame["sentence"].tolist() == texts
    assert frame["class"].tolist() == [0, 1, 0, 1]
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\nfine\t-1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="label '-1'"):
        read_sentences(tmp_path / "dev.tsv", TASKS["sst2"])


def test_a_model_of_other_classes_is_refused(model_folder, sentences, capsys):
    from benchmarks.heads.glue import main

    with pytest.raises(SystemExit):
        main(["sst2", "--model", str(model_folder), "--data", str(sentences)])
    assert "has 3 classes, but sst2 has 2" in capsys.readouterr().err
