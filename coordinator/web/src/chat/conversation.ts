// What a conversation is, and every change to it. Pure: each function gives a new conversation.
import { newId } from '../lib/ids';
import { type Call, readCalls, readTools } from './tools';

export interface Sampling {
  temperature: number | null;
  top_p: number | null;
  top_k: number | null;
  min_p: number | null;
  max_tokens: number | null;
  seed: number | null;
}

// null leaves the choice to the server.
export const kServerSampling: Sampling = {
  temperature: null,
  top_p: null,
  top_k: null,
  min_p: null,
  max_tokens: null,
  seed: null,
};

// What the server takes where nothing is set, from `default_sampling` of a model in its list; null: it does not say.
export function serversSampling(told: unknown): Sampling {
  const { temperature, top_p, top_k, min_p } = readSampling(told);
  return { ...kServerSampling, temperature, top_p, top_k, min_p };
}

export interface Stats {
  promptTokens: number;
  cachedTokens: number;
  answerTokens: number;
  firstTokenMs: number;
  tokensPerSecond: number | null; // null while there are not two tokens
}

// How an answer ended: by itself, at the limit of tokens, by the user, or by a fault. null: it is being written, or
// the page was closed meanwhile.
export type Ending = 'stop' | 'length' | 'stopped' | 'error' | null;

export interface Turn {
  id: string;
  role: 'user' | 'assistant';
  content: string;
  reasoning: string;
  calls: Call[];
  ending: Ending;
  error: string;
  stats: Stats | null;
}

export interface Conversation {
  id: string;
  title: string; // "" until it is named; the first words stand for it
  updated: number; // milliseconds since 1970
  system: string;
  model: string; // "": the server's first
  tools: string; // JSON, as the user wrote it; "": none
  sampling: Sampling;
  turns: Turn[];
}

export function newConversation(now: number, like?: Conversation): Conversation {
  return {
    id: newId(),
    title: '',
    updated: now,
    system: like?.system ?? '',
    model: like?.model ?? '',
    tools: like?.tools ?? '',
    sampling: like?.sampling ?? kServerSampling,
    turns: [],
  };
}

function turn(role: Turn['role'], content: string): Turn {
  return { id: newId(), role, content, reasoning: '', calls: [], ending: null, error: '', stats: null };
}

export function titleOf(conversation: Conversation): string {
  if (conversation.title) return conversation.title;
  const first =
    conversation.turns
      .find((t) => t.role === 'user')
      ?.content.trim()
      .replace(/\s+/g, ' ') ?? '';
  if (!first) return 'New conversation';
  return first.length > 48 ? `${first.slice(0, 47).trimEnd()}…` : first;
}

// The user says `text`; an empty answer stands behind it, to be written.
export function ask(conversation: Conversation, text: string, now: number): Conversation {
  return { ...conversation, updated: now, turns: [...conversation.turns, turn('user', text), turn('assistant', '')] };
}

// The user's turn `id` becomes `text`; what came after it is dropped and an empty answer stands behind it.
export function editTurn(conversation: Conversation, id: string, text: string, now: number): Conversation {
  const at = conversation.turns.findIndex((t) => t.id === id && t.role === 'user');
  if (at < 0) return conversation;
  return ask({ ...conversation, turns: conversation.turns.slice(0, at) }, text, now);
}

// The answer `id` and what came after it are dropped; an empty answer takes its place.
export function askAgain(conversation: Conversation, id: string, now: number): Conversation {
  const at = conversation.turns.findIndex((t) => t.id === id && t.role === 'assistant');
  if (at < 1) return conversation;
  return { ...conversation, updated: now, turns: [...conversation.turns.slice(0, at), turn('assistant', '')] };
}

export function changeTurn(conversation: Conversation, id: string, change: (t: Turn) => Turn): Conversation {
  return { ...conversation, turns: conversation.turns.map((t) => (t.id === id ? change(t) : t)) };
}

export interface ChatRequest {
  model?: string;
  messages: { role: 'system' | 'user' | 'assistant'; content: string }[];
  stream: true;
  stream_options: { include_usage: true };
  [setting: string]: unknown;
}

// The request for the conversation's last, still empty answer. Answers without text are left out, and so are calls of
// tools, as they have no results. Tools that can't be read are left out too.
export function requestOf(conversation: Conversation, firstModel: string): ChatRequest {
  const messages: ChatRequest['messages'] = [];
  if (conversation.system.trim()) messages.push({ role: 'system', content: conversation.system });
  for (const t of conversation.turns.slice(0, -1)) {
    if (t.role === 'user' || t.content) messages.push({ role: t.role, content: t.content });
  }
  const request: ChatRequest = { messages, stream: true, stream_options: { include_usage: true } };
  const model = conversation.model || firstModel;
  if (model) request.model = model;
  const tools = readTools(conversation.tools);
  if (typeof tools !== 'string' && tools.length > 0) request.tools = tools;
  for (const [setting, value] of Object.entries(conversation.sampling)) {
    if (value !== null) request[setting] = value;
  }
  return request;
}

const isText = (value: unknown): value is string => typeof value === 'string';
const isNumber = (value: unknown): value is number => typeof value === 'number' && Number.isFinite(value);

function readSampling(value: unknown): Sampling {
  const from = (value ?? {}) as Record<string, unknown>;
  const sampling = { ...kServerSampling };
  for (const name of Object.keys(sampling) as (keyof Sampling)[]) {
    const setting = from[name];
    if (isNumber(setting)) sampling[name] = setting;
  }
  return sampling;
}

function readTurn(value: unknown): Turn | null {
  const from = value as Partial<Turn> | null;
  if (!from || !isText(from.id) || !isText(from.content)) return null;
  if (from.role !== 'user' && from.role !== 'assistant') return null;
  return {
    id: from.id,
    role: from.role,
    content: from.content,
    reasoning: isText(from.reasoning) ? from.reasoning : '',
    calls: readCalls(from.calls),
    ending: from.ending ?? null,
    error: isText(from.error) ? from.error : '',
    stats: from.stats ?? null,
  };
}

// A conversation as the browser kept it; null if the text is none.
export function readConversation(text: string): Conversation | null {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return null;
  }
  const from = value as Partial<Conversation> | null;
  if (!from || !isText(from.id) || !Array.isArray(from.turns)) return null;
  const turns = from.turns.map(readTurn);
  if (turns.includes(null)) return null;
  return {
    id: from.id,
    title: isText(from.title) ? from.title : '',
    updated: isNumber(from.updated) ? from.updated : 0,
    system: isText(from.system) ? from.system : '',
    model: isText(from.model) ? from.model : '',
    tools: isText(from.tools) ? from.tools : '',
    sampling: readSampling(from.sampling),
    turns: turns as Turn[],
  };
}
