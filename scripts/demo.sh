#!/bin/sh
# Two minutes of training on text that ships with every Python, then what the model writes. Called by `make demo`.
set -eu
SERIATIM="${BIN:-.venv/bin}/seriatim"
RUN=runs/demo

"$SERIATIM" train lm --data builtin:python-docs --out "$RUN" --overwrite \
    --tokenizer.kind bpe --tokenizer.vocabulary_size 2000 \
    --layer lstm --model.embedding_size 256 --model.hidden_size 384 \
    --training.batch_size 8 --training.sequence_length 64 --training.learning_rate 3e-3 \
    --training.warmup_steps 50 --training.minutes "${DEMO_MINUTES:-2}"

echo
echo "What it writes after \"Return the\":"
echo
"$SERIATIM" generate "$RUN" --prompt "Return the" --max-tokens 120 --temperature 0.6 --top-p 0.95 --seed 7
echo
echo "Next, try:"
echo "  $SERIATIM evaluate $RUN --data builtin:python-docs"
echo "  $SERIATIM generate $RUN --prompt \"The class\" --temperature 0.5 --samples 3"
echo "  $SERIATIM train lm --data YOUR.txt --layer gru --training.minutes 2 --out runs/mine"
