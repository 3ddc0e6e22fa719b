// A value that components can watch. Updates replace the value; nobody changes it in place.
import { useEffect, useState } from 'preact/hooks';

export class Store<T> {
  private readonly watchers = new Set<() => void>();

  constructor(private value: T) {}

  get(): T {
    return this.value;
  }

  set(value: T): void {
    if (Object.is(value, this.value)) return;
    this.value = value;
    for (const watcher of [...this.watchers]) watcher();
  }

  update(change: (value: T) => T): void {
    this.set(change(this.value));
  }

  // Returns what ends the watching.
  watch(watcher: () => void): () => void {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  }
}

// The part of the store's value that `select` gives; the component renders again when that part is another one.
export function useStore<T, P = T>(store: Store<T>, select: (value: T) => P = (value) => value as unknown as P): P {
  const part = select(store.get());
  const [, render] = useState<object>();
  useEffect(() => {
    let shown = part;
    const compare = () => {
      const now = select(store.get());
      if (Object.is(now, shown)) return;
      shown = now;
      render({});
    };
    compare(); // what changed between the render and this effect
    return store.watch(compare);
  }, [store]);
  return part;
}
