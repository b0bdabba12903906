/* Reads a server-sent event stream from a fetch response: yields {event, data} for each frame. */
export async function* frames(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += value;
    let end;
    while ((end = buffer.indexOf("\n\n")) >= 0) {
      const block = buffer.slice(0, end);
      buffer = buffer.slice(end + 2);
      const frame = { event: "message", data: "" };
      for (const line of block.split("\n")) {
        if (line.startsWith("event:")) frame.event = line.slice(6).trim();
        else if (line.startsWith("data:")) frame.data += (frame.data ? "\n" : "") + line.slice(5).trimStart();
      }
      if (frame.data) yield frame;
    }
  }
}
