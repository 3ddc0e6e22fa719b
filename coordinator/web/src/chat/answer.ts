// Writes an answer: sends the conversation, reads the stream, and puts what arrives into its last turn.
import { ApiError, errorMessage, explain, getJson, isAbort, request } from '../lib/api';
import { readEvents } from '../lib/sse';
import { Store } from '../lib/store';
import {
  type Conversation,
  type Ending,
  type Sampling,
  type Stats,
  type Turn,
  askAgain,
  ask,
  changeTurn,
  editTurn,
  requestOf,
  kServerSampling,
  serversSampling,
} from './conversation';
import type { Conversations } from './conversations';
import { type Call, type CallPart, readTools, withParts } from './tools';

const kFrameMs = 33;
// Tokens that come in one packet have no rate that means anything.
const kShortest = 0.1; // seconds

interface Delta {
  content?: string | null;
  reasoning_content?: string | null;
  tool_calls?: CallPart[] | null;
}

interface Chunk {
  choices?: { delta?: Delta; finish_reason?: string | null }[];
  usage?: {
    prompt_tokens?: number;
    completion_tokens?: number;
    prompt_tokens_details?: { cached_tokens?: number } | null;
  } | null;
}

// What a stream of chunks has added up to. Pure: the clock comes from outside.
export class AnswerReader {
  content = '';
  reasoning = '';
  calls: Call[] = [];
  ending: Ending = null;
  private pieces = 0;
  private firstAt: number | null = null;
  private lastAt = 0;
  private usage: NonNullable<Chunk['usage']> | null = null;

  constructor(private readonly startedAt: number) {}

  // Returns false after the last event. Throws what the server reports.
  take(data: string, now: number): boolean {
    if (data === '[DONE]') return false;
    let chunk: Chunk;
    try {
      chunk = JSON.parse(data) as Chunk;
    } catch {
      throw new ApiError('The server sent an event that is not JSON.', 200);
    }
    const fault = errorMessage(chunk);
    if (fault) throw new ApiError(fault, 200);
    const choice = chunk.choices?.[0];
    const { content, reasoning_content: reasoning, tool_calls: parts } = choice?.delta ?? {};
    if (parts) this.calls = withParts(this.calls, parts);
    if (content || reasoning || parts) {
      this.content += content ?? '';
      this.reasoning += reasoning ?? '';
      this.pieces++;
      this.firstAt ??= now;
      this.lastAt = now;
    }
    if (choice?.finish_reason) this.ending = choice.finish_reason === 'length' ? 'length' : 'stop';
    if (chunk.usage) this.usage = chunk.usage;
    return true;
  }

  // Until the server says how many tokens there are, each piece counts as one.
  stats(): Stats | null {
    if (this.firstAt === null && !this.usage) return null;
    const tokens = this.usage?.completion_tokens ?? this.pieces;
    const seconds = this.firstAt === null ? 0 : (this.lastAt - this.firstAt) / 1000;
    return {
      promptTokens: this.usage?.prompt_tokens ?? 0,
      cachedTokens: this.usage?.prompt_tokens_details?.cached_tokens ?? 0,
      answerTokens: tokens,
      firstTokenMs: (this.firstAt ?? this.startedAt) - this.startedAt,
      tokensPerSecond: tokens > 1 && seconds >= kShortest ? (tokens - 1) / seconds : null,
    };
  }
}

export class Answers {
  // The conversations that have an answer on the way, and how to stop it.
  readonly running = new Store<ReadonlyMap<string, AbortController>>(new Map());
  readonly models = new Store<string[]>([]);
  readonly defaults = new Store<Sampling>(kServerSampling); // the server's, where nothing is set

  constructor(private readonly conversations: Conversations) {}

  async loadModels(): Promise<void> {
    const list = await getJson<{ data?: { id: string; default_sampling?: unknown }[] }>('/v1/models').catch(() => null);
    if (list?.data) this.models.set(list.data.map((model) => model.id));
    if (list?.data) this.defaults.set(serversSampling(list.data[0]?.default_sampling));
  }

  say(id: string, text: string): void {
    this.begin(id, (c) => ask(c, text, Date.now()));
  }

  sayInstead(id: string, turn: string, text: string): void {
    this.begin(id, (c) => editTurn(c, turn, text, Date.now()));
  }

  again(id: string, turn: string): void {
    this.begin(id, (c) => askAgain(c, turn, Date.now()));
  }

  stop(id: string): void {
    this.running.get().get(id)?.abort();
  }

  private begin(id: string, change: (c: Conversation) => Conversation): void {
    if (this.running.get().has(id)) return;
    this.conversations.change(id, change);
    const abort = new AbortController();
    this.running.update((all) => new Map(all).set(id, abort));
    void this.write(id, abort.signal).finally(() => {
      this.running.update((all) => new Map([...all].filter(([other]) => other !== id)));
      this.conversations.save();
    });
  }

  private async write(id: string, signal: AbortSignal): Promise<void> {
    const conversation = this.conversations.get(id);
    const turn = conversation?.turns.at(-1);
    if (!conversation || !turn) return;
    const reader = new AnswerReader(performance.now());
    let frame = 0;
    let pause = kFrameMs;
    const show = (more: Partial<Turn> = {}) => {
      frame = 0;
      const begin = performance.now();
      // The text is drawn before the next timer runs. Long texts are drawn less often, so that the page stays quick.
      setTimeout(() => (pause = Math.max(kFrameMs, 3 * (performance.now() - begin))));
      const { content, reasoning, calls } = reader;
      const change = (t: Turn): Turn => ({ ...t, content, reasoning, calls, stats: reader.stats(), ...more });
      this.conversations.change(id, (c) => changeTurn(c, turn.id, change), true);
    };
    let last: Partial<Turn>;
    try {
      const tools = readTools(conversation.tools);
      if (typeof tools === 'string') throw new ApiError(tools, 0);
      if (this.models.get().length === 0) await this.loadModels();
      const body = JSON.stringify(requestOf(conversation, this.models.get()[0] ?? ''));
      const response = await request('/v1/chat/completions', { method: 'POST', body, signal });
      for await (const event of readEvents(response.body!)) {
        if (!reader.take(event.data, performance.now())) break;
        frame ||= window.setTimeout(show, pause);
      }
      last = reader.ending ? { ending: reader.ending } : { ending: 'error', error: 'The answer broke off.' };
    } catch (error) {
      last = isAbort(error) ? { ending: 'stopped' } : { ending: 'error', error: explain(error) };
    }
    clearTimeout(frame);
    show(last);
  }
}
