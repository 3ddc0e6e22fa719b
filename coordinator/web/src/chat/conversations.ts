// All conversations, kept in the browser: one entry of its storage each.
import { Store } from '../lib/store';
import { type Conversation, newConversation, readConversation } from './conversation';

const kPrefix = 'gyre.conversation.';
const kCurrent = 'gyre.current';

export interface Kept {
  conversations: Conversation[]; // newest first
  current: string; // an id of these
  fault: string; // why the browser keeps nothing, or ""
}

export type Keeper = Pick<Storage, 'getItem' | 'setItem' | 'removeItem' | 'key' | 'length'>;

const byAge = (a: Conversation, b: Conversation) => b.updated - a.updated;

export class Conversations {
  readonly store: Store<Kept>;
  private readonly unsaved = new Set<string>();
  private timer: ReturnType<typeof setTimeout> | undefined;

  // `keeper` is null where the browser keeps nothing.
  constructor(
    private readonly keeper: Keeper | null,
    private readonly now: () => number = Date.now,
  ) {
    const conversations = this.load().sort(byAge);
    const first = conversations[0] ?? newConversation(now());
    if (conversations.length === 0) conversations.push(first);
    const current = this.keeper?.getItem(kCurrent) ?? '';
    const known = conversations.some((c) => c.id === current);
    this.store = new Store({ conversations, current: known ? current : first.id, fault: '' });
  }

  get(id: string): Conversation | undefined {
    return this.store.get().conversations.find((c) => c.id === id);
  }

  current(): Conversation {
    return this.get(this.store.get().current)!;
  }

  select(id: string): void {
    if (!this.get(id)) return;
    this.store.update((kept) => ({ ...kept, current: id }));
    this.keep(() => this.keeper?.setItem(kCurrent, id));
  }

  // Opens an empty conversation with the settings of the current one. An empty one that is there already is taken.
  open(): void {
    const empty = this.store.get().conversations.find((c) => c.turns.length === 0 && !c.title);
    if (empty) return this.select(empty.id);
    const fresh = newConversation(this.now(), this.current());
    this.store.update((kept) => ({ ...kept, conversations: [fresh, ...kept.conversations] }));
    this.select(fresh.id);
  }

  // Changes one conversation. `later` bundles the saving of many small changes.
  change(id: string, change: (c: Conversation) => Conversation, later = false): void {
    const before = this.get(id);
    if (!before) return;
    const after = change(before);
    if (after === before) return;
    const conversations = this.store.get().conversations.map((c) => (c.id === id ? after : c));
    if (after.updated !== before.updated) conversations.sort(byAge);
    this.store.update((kept) => ({ ...kept, conversations }));
    this.unsaved.add(id);
    if (!later) this.save();
    else this.timer ??= setTimeout(() => this.save(), 1000);
  }

  remove(id: string): void {
    const { conversations, current } = this.store.get();
    const at = conversations.findIndex((c) => c.id === id);
    if (at < 0) return;
    const left = conversations.filter((c) => c.id !== id);
    if (left.length === 0) left.push(newConversation(this.now(), conversations[at]));
    this.unsaved.delete(id);
    this.keep(() => this.keeper?.removeItem(kPrefix + id));
    const next = current === id ? left[Math.min(at, left.length - 1)]!.id : current;
    this.store.update((kept) => ({ ...kept, conversations: left, current: next }));
    this.select(next);
  }

  // Writes what changed.
  save(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    for (const id of this.unsaved) {
      const conversation = this.get(id);
      if (conversation) this.keep(() => this.keeper?.setItem(kPrefix + id, JSON.stringify(conversation)));
    }
    this.unsaved.clear();
  }

  // Another tab of this page wrote `key`.
  changedElsewhere(key: string | null, value: string | null): void {
    if (!key?.startsWith(kPrefix)) return;
    const id = key.slice(kPrefix.length);
    if (value === null) {
      if (this.store.get().current !== id) {
        this.store.update((kept) => ({ ...kept, conversations: kept.conversations.filter((c) => c.id !== id) }));
      }
      return;
    }
    const theirs = readConversation(value);
    if (!theirs) return;
    const others = this.store.get().conversations.filter((c) => c.id !== id);
    this.store.update((kept) => ({ ...kept, conversations: [theirs, ...others].sort(byAge) }));
  }

  private load(): Conversation[] {
    const found: Conversation[] = [];
    for (let i = 0; this.keeper && i < this.keeper.length; i++) {
      const key = this.keeper.key(i);
      if (!key?.startsWith(kPrefix)) continue;
      const conversation = readConversation(this.keeper.getItem(key) ?? '');
      if (conversation) found.push(conversation);
    }
    return found;
  }

  private keep(write: () => void): void {
    let fault = '';
    try {
      write();
    } catch {
      fault = 'The browser has no room left for this conversation. Delete an old one to keep it.';
    }
    this.store.update((kept) => (kept.fault === fault ? kept : { ...kept, fault }));
  }
}
