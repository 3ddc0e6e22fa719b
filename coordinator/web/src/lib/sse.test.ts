import { describe, expect, it } from 'vitest';
import { SseParser, readEvents } from './sse';

const whole = (text: string) => new SseParser().push(text);

describe('SseParser', () => {
  it('reads events, their names and data of several lines', () => {
    expect(whole('data: a\n\nevent: status\ndata: {\ndata: }\n\n')).toEqual([
      { event: 'message', data: 'a' },
      { event: 'status', data: '{\n}' },
    ]);
  });

  it('reads the same from pieces of any size', () => {
    const text = '\ufeff: hello\r\nevent: x\r\ndata: one\r\ndata:two\r\n\r\ndata: three\r\rid: 7\ndata\n\n';
    const expected = whole(text);
    expect(expected.map((event) => event.data)).toEqual(['one\ntwo', 'three', '']);
    for (let size = 1; size < 12; size++) {
      const parser = new SseParser();
      const events = [];
      for (let i = 0; i < text.length; i += size) events.push(...parser.push(text.slice(i, i + size)));
      expect(events, `pieces of ${size}`).toEqual(expected);
    }
  });

  it('gives nothing for comments and for an event that is not complete', () => {
    expect(whole(': ping\n\n')).toEqual([]);
    expect(whole('event: status\n\n')).toEqual([]);
    expect(whole('data: half')).toEqual([]);
  });

  it('keeps all but one space of a value', () => {
    expect(whole('data:  two spaces \n\n')[0]!.data).toBe(' two spaces ');
  });
});

describe('readEvents', () => {
  it('keeps a character whole that is cut between chunks', async () => {
    const bytes = new TextEncoder().encode('data: é🙂\n\n');
    const body = new ReadableStream<Uint8Array>({
      start(controller) {
        for (const byte of bytes) controller.enqueue(new Uint8Array([byte]));
        controller.close();
      },
    });
    const events = [];
    for await (const event of readEvents(body)) events.push(event.data);
    expect(events).toEqual(['é🙂']);
  });

  it('cancels the body when the reader stops early', async () => {
    let cancelled = false;
    const body = new ReadableStream<Uint8Array>({
      pull: (controller) => controller.enqueue(new TextEncoder().encode('data: x\n\n')),
      cancel: () => void (cancelled = true),
    });
    for await (const event of readEvents(body)) {
      expect(event.data).toBe('x');
      break;
    }
    expect(cancelled).toBe(true);
  });
});
