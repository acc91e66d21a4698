#!/bin/sh
# Nine architectures on text that ships with every Python, each on as many tokens. Called by `make demo`.
set -eu
SERIATIM="${BIN:-.venv/bin}/seriatim"
OUT=comparisons/demo

"$SERIATIM" compare lm --data builtin:python-docs \
    --layers prior,ngram,window,rnn,lstm,gru,convolution,transformer,mamba \
    --tokens "${DEMO_TOKENS:-500000}" --parameters 500k \
    --tokenizer.kind bpe --tokenizer.vocabulary_size 1000 --out "$OUT" --overwrite

echo
echo "Next, try:"
echo "  $SERIATIM inspect $OUT/runs/lstm-1 --text \"Return the number of items in the container.\""
echo "  $SERIATIM generate $OUT/runs/transformer-1 --prompt \"The class\" --temperature 0.6"
echo "  $SERIATIM compare lm --data YOUR.txt --valid REST.txt --layers ngram,lstm,transformer --minutes 1"
echo
echo "The results with plots, as a page: $PWD/$OUT/report.html"
