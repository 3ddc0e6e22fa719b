// The calls of tools in an answer, which the page shows and never runs, and the tools that a request declares. Pure.

export interface Call {
  name: string;
  arguments: string; // JSON, as the model wrote it; broken off where the answer was
}

// A part of a call, as a stream has it.
export interface CallPart {
  index?: number;
  function?: { name?: string | null; arguments?: string | null } | null;
}

// The calls with further parts of them. A part without a number goes on with the last call, or begins one by its name.
export function withParts(calls: Call[], parts: CallPart[]): Call[] {
  const all = [...calls];
  for (const part of parts) {
    const name = part.function?.name ?? '';
    const at = part.index ?? (name ? all.length : all.length - 1);
    if (at < 0 || at > all.length) continue; // of a call that never began
    const before = all[at] ?? { name: '', arguments: '' };
    all[at] = { name: before.name || name, arguments: before.arguments + (part.function?.arguments ?? '') };
  }
  return all;
}

// The arguments for people: JSON in lines, or what is there of it.
export function argumentsInLines(call: Call): string {
  try {
    return JSON.stringify(JSON.parse(call.arguments || '{}'), null, 2);
  } catch {
    return call.arguments;
  }
}

// What the user wrote as tools: a list as a request has it, or a sentence that says what is wrong. "": there are none.
export function readTools(text: string): unknown[] | string {
  if (text.trim() === '') return [];
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return `The tools are not JSON: ${(error as Error).message}.`;
  }
  return Array.isArray(value) ? value : 'The tools must be a list, as [{"type": "function", "function": {…}}].';
}

export function readCalls(value: unknown): Call[] {
  if (!Array.isArray(value)) return [];
  return value.flatMap((call: Partial<Call> | null) =>
    typeof call?.name === 'string' && typeof call.arguments === 'string'
      ? [{ name: call.name, arguments: call.arguments }]
      : [],
  );
}
