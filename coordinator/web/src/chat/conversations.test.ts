import { describe, expect, it } from 'vitest';
import { ask } from './conversation';
import { Conversations, type Keeper } from './conversations';

class FakeKeeper implements Keeper {
  readonly entries = new Map<string, string>();
  full = false;
  get length() {
    return this.entries.size;
  }
  key = (i: number) => [...this.entries.keys()][i] ?? null;
  getItem = (key: string) => this.entries.get(key) ?? null;
  removeItem = (key: string) => void this.entries.delete(key);
  setItem = (key: string, value: string) => {
    if (this.full) throw new Error('QuotaExceededError');
    this.entries.set(key, value);
  };
}

describe('Conversations', () => {
  it('begins with an empty one and keeps what is said', () => {
    const keeper = new FakeKeeper();
    const first = new Conversations(keeper, () => 1);
    const { id } = first.current();
    first.change(id, (c) => ask(c, 'hello', 2));
    const again = new Conversations(keeper, () => 3);
    expect(again.get(id)!.turns[0]!.content).toBe('hello');
    expect(again.current().id).toBe(id);
  });

  it('opens at most one empty conversation, with the settings of the last', () => {
    const all = new Conversations(new FakeKeeper(), () => 1);
    const { id } = all.current();
    all.open();
    expect(all.store.get().conversations).toHaveLength(1);
    all.change(id, (c) => ask({ ...c, system: 'Be brief.' }, 'hello', 2));
    all.open();
    all.open();
    expect(all.store.get().conversations).toHaveLength(2);
    expect(all.current()).toMatchObject({ system: 'Be brief.', turns: [] });
  });

  it('puts the newest first and comes back to the current one', () => {
    const keeper = new FakeKeeper();
    const all = new Conversations(keeper, () => 1);
    const a = all.current().id;
    all.change(a, (c) => ask(c, 'a', 10));
    all.open();
    const b = all.current().id;
    all.change(b, (c) => ask(c, 'b', 20));
    all.change(a, (c) => ask(c, 'more', 30));
    expect(all.store.get().conversations.map((c) => c.id)).toEqual([a, b]);
    expect(new Conversations(keeper).current().id).toBe(b);
  });

  it('removes one and shows its neighbor, and never has none', () => {
    const keeper = new FakeKeeper();
    const all = new Conversations(keeper, () => 1);
    const a = all.current().id;
    all.change(a, (c) => ask(c, 'a', 10));
    all.open();
    all.change(all.current().id, (c) => ask(c, 'b', 20));
    all.remove(all.current().id);
    expect(all.current().id).toBe(a);
    all.remove(a);
    expect(all.current().turns).toEqual([]);
    expect([...keeper.entries.keys()].filter((key) => key.startsWith('gyre.conversation.'))).toEqual([]);
  });

  it('says when the browser is full, and until when', () => {
    const keeper = new FakeKeeper();
    const all = new Conversations(keeper, () => 1);
    keeper.full = true;
    all.change(all.current().id, (c) => ask(c, 'a', 10));
    expect(all.store.get().fault).toContain('no room');
    expect(all.current().turns).toHaveLength(2);
    keeper.full = false;
    all.change(all.current().id, (c) => ask(c, 'b', 11));
    expect(all.store.get().fault).toBe('');
  });

  it('takes over what another tab wrote, and ignores damage', () => {
    const keeper = new FakeKeeper();
    keeper.entries.set('gyre.conversation.bad', '{');
    const all = new Conversations(keeper, () => 1);
    const { id } = all.current();
    const theirs = ask(all.current(), 'theirs', 50);
    all.changedElsewhere(`gyre.conversation.${id}`, JSON.stringify(theirs));
    expect(all.get(id)!.turns[0]!.content).toBe('theirs');
    all.changedElsewhere(`gyre.conversation.${id}`, 'nonsense');
    all.changedElsewhere('other', null);
    expect(all.get(id)!.turns[0]!.content).toBe('theirs');
  });

  it('lives without a keeper', () => {
    const all = new Conversations(null);
    all.change(all.current().id, (c) => ask(c, 'a', 10));
    expect(all.current().turns).toHaveLength(2);
  });
});
