// Requests to the server that gave this page. Every failure becomes an ApiError whose message is a sentence.
import { Store } from './store';

export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message);
  }
}

const kKeyName = 'gyre.api_key';

function kept(name: string): string {
  try {
    return localStorage.getItem(name) ?? '';
  } catch {
    return '';
  }
}

export const apiKey = new Store<string>(kept(kKeyName));
// True once the server answered 401: the page then asks for a key.
export const keyNeeded = new Store<boolean>(false);

export function keepApiKey(key: string): void {
  try {
    if (key) localStorage.setItem(kKeyName, key);
    else localStorage.removeItem(kKeyName);
  } catch {
    // The key then lives as long as the page.
  }
  keyNeeded.set(false);
  apiKey.set(key);
}

function sentence(text: string): string {
  const trimmed = text.trim();
  if (trimmed === '') return trimmed;
  const first = trimmed.charAt(0).toUpperCase() + trimmed.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}

// What the status alone says, for answers that explain nothing.
function meaning(status: number): string {
  switch (status) {
    case 401:
      return 'The server wants an API key.';
    case 403:
      return 'This API key may not do that: it needs the role "admin".';
    case 404:
      return 'The server does not offer this.';
    case 413:
      return 'The request is too large for the server.';
    case 429:
      return 'Too many requests wait already. Please try again in a moment.';
    case 503:
      return 'The server is not ready yet. Please try again in a moment.';
    default:
      return `The server answered with HTTP status ${status}.`;
  }
}

// The message of an error object in OpenAI's form, or null.
export function errorMessage(body: unknown): string | null {
  const error = (body as { error?: { message?: unknown } | string } | null)?.error;
  const message = typeof error === 'string' ? error : error?.message;
  return typeof message === 'string' && message !== '' ? sentence(message) : null;
}

export const kUnreachable = 'The server cannot be reached. Is gyre still running?';

export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (init.body) headers.set('Content-Type', 'application/json');
  if (apiKey.get()) headers.set('Authorization', `Bearer ${apiKey.get()}`);
  let response: Response;
  try {
    response = await fetch(path, { ...init, headers, cache: 'no-store', credentials: 'omit' });
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error;
    throw new ApiError(kUnreachable, 0);
  }
  if (response.ok) return response;
  if (response.status === 401) keyNeeded.set(true);
  const body = await response.json().catch(() => null);
  throw new ApiError(errorMessage(body) ?? meaning(response.status), response.status);
}

export async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await request(path, { signal })).json() as Promise<T>;
}

export async function postJson<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  return (await request(path, { method: 'POST', body: JSON.stringify(body), signal })).json() as Promise<T>;
}

// The sentence that the user sees for whatever was thrown.
export function explain(error: unknown): string {
  if (error instanceof ApiError) return error.message;
  if (error instanceof TypeError) return kUnreachable; // how fetch says that a stream broke off
  return sentence(error instanceof Error ? error.message : String(error));
}

export const isAbort = (error: unknown): boolean => error instanceof DOMException && error.name === 'AbortError';
