// Server-sent events from a fetch response, so that requests can carry an Authorization header and a body.

export interface ServerEvent {
  event: string;
  data: string;
}

// Takes text in pieces of any size and gives the events that are complete. Lines end with \n, \r\n or \r.
export class SseParser {
  private rest = '';
  private event = '';
  private data: string[] = [];
  private started = false;

  push(piece: string): ServerEvent[] {
    let text = this.rest + piece;
    if (!this.started && text.length > 0) {
      if (text.charCodeAt(0) === 0xfeff) text = text.slice(1);
      this.started = true;
    }
    const events: ServerEvent[] = [];
    let begin = 0;
    for (;;) {
      const end = lineEnd(text, begin);
      if (end === null) break;
      const complete = this.line(text.slice(begin, end.at));
      if (complete) events.push(complete);
      begin = end.next;
    }
    this.rest = text.slice(begin);
    return events;
  }

  private line(line: string): ServerEvent | null {
    if (line === '') {
      const complete = this.data.length > 0 ? { event: this.event || 'message', data: this.data.join('\n') } : null;
      this.event = '';
      this.data = [];
      return complete;
    }
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? '' : line.slice(colon + 1);
    if (value.startsWith(' ')) value = value.slice(1);
    if (field === 'data') this.data.push(value);
    if (field === 'event') this.event = value;
    return null;
  }
}

// Where the line that starts at `begin` ends and the next one starts; null if its end has not come yet. A \r at the
// end of the text may be the first half of \r\n, so it ends no line before the next character is there.
function lineEnd(text: string, begin: number): { at: number; next: number } | null {
  for (let i = begin; i < text.length; i++) {
    const c = text.charCodeAt(i);
    if (c === 10) return { at: i, next: i + 1 };
    if (c === 13) {
      if (i + 1 === text.length) return null;
      return { at: i, next: text.charCodeAt(i + 1) === 10 ? i + 2 : i + 1 };
    }
  }
  return null;
}

// The events of a response's body, until it ends. A character that is cut between two chunks stays whole.
export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new SseParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}
