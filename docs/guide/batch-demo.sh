#!/bin/sh
# A batch that survives everything: many lines, a chat in between, two processes killed, and a proof with jq.
# Needs a running platform (make run), curl and jq.
#
#   sh docs/guide/batch-demo.sh
#
# BASE   where it answers      HOME_DIR  its data directory, for the process ids
# LINES  lines of the batch    MODEL     the model they name; the current one when empty
set -eu
BASE=${BASE:-http://127.0.0.1:8000}
HOME_DIR=${HOME_DIR:-var}
LINES=${LINES:-2000}
MODEL=${MODEL:-$(curl -sf "$BASE/v1/models" | jq -r '.data[0].id')}
JSON='content-type: application/json'
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

# An answer may be missing for the seconds in which the web server is started again.
ask() { curl -sf --retry 30 --retry-delay 1 --retry-all-errors "$@"; }
finished() { ask "$BASE/v1/batches/$BATCH" | jq '.request_counts | .completed + .failed'; }
until_finished() { until [ "$(finished)" -ge "$1" ]; do sleep 0.3; done; }

# 1. Lines with an id each.
seq "$LINES" | jq -c --arg model "$MODEL" \
  '{custom_id: "r\(.)", method: "POST", url: "/v1/chat/completions",
    body: {model: $model, messages: [{role: "user", content: "Write one sentence about the number \(.)."}], max_tokens: 24}}' \
  > "$WORK/in.jsonl"

# 2. Upload and start.
FILE=$(ask "$BASE/v1/files" -F purpose=batch -F "file=@$WORK/in.jsonl" | jq -r .id)
BATCH=$(ask "$BASE/v1/batches" -H "$JSON" \
  -d "{\"input_file_id\": \"$FILE\", \"endpoint\": \"/v1/chat/completions\", \"completion_window\": \"24h\"}" | jq -r .id)
echo "batch $BATCH: $LINES lines on $MODEL"

# 3. Chat meanwhile: interactive requests go first.
until_finished 1
ask "$BASE/v1/chat/completions" -H "$JSON" \
  -d '{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16}' | jq -r '"chat: " + .choices[0].finish_reason'

# 4. Read what is done so far. What you read now stays the beginning of the final file.
OUT=$(ask "$BASE/v1/batches/$BATCH" | jq -r .output_file_id)
ask "$BASE/v1/files/$OUT/content" > "$WORK/early.jsonl"
echo "read early: $(wc -l < "$WORK/early.jsonl") lines"

# 5. Kill the process with the GPU, then the web server. They come back by themselves.
until_finished $((LINES / 4))
kill -9 "$(jq .gpu "$HOME_DIR/processes.json")"
echo "killed gpu at $(finished)"
until_finished $((LINES / 2))
kill -9 "$(jq .web "$HOME_DIR/processes.json")"
echo "killed web"

# 6. Wait for the end.
until ask "$BASE/v1/batches/$BATCH" | jq -e '.status == "completed"' > /dev/null; do sleep 1; done
ask "$BASE/v1/batches/$BATCH" | jq -c .request_counts

# 7. Every id once, none missing, and the early part unchanged.
ask "$BASE/v1/files/$OUT/content" > "$WORK/out.jsonl"
TWICE=$(jq -r .custom_id "$WORK/out.jsonl" | sort | uniq -d | wc -l)
UNIQUE=$(jq -r .custom_id "$WORK/out.jsonl" | sort -u | wc -l)
echo "ids twice: $((TWICE)), unique ids: $((UNIQUE)) of $LINES"
head -c "$(wc -c < "$WORK/early.jsonl")" "$WORK/out.jsonl" | cmp - "$WORK/early.jsonl"
[ "$TWICE" -eq 0 ] && [ "$UNIQUE" -eq "$LINES" ] && echo "whole"
