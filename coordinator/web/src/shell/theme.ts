import { Store } from '../lib/store';

export type Theme = 'system' | 'light' | 'dark';

const kName = 'gyre.theme';
const chosen = document.documentElement.dataset.theme;

export const theme = new Store<Theme>(chosen === 'light' || chosen === 'dark' ? chosen : 'system');

export function chooseTheme(next: Theme): void {
  if (next === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    if (next === 'system') localStorage.removeItem(kName);
    else localStorage.setItem(kName, next);
  } catch {
    // The choice then lives as long as the page.
  }
  theme.set(next);
}

// Calls back when the colors may have changed. Returns what ends that.
export function watchColors(changed: () => void): () => void {
  const query = matchMedia('(prefers-color-scheme: dark)');
  query.addEventListener('change', changed);
  const end = theme.watch(changed);
  return () => {
    query.removeEventListener('change', changed);
    end();
  };
}

// The value of a custom property as a color that a canvas takes.
export function color(property: string, within: Element = document.body): string {
  const probe = document.createElement('span');
  probe.style.color = `var(${property})`;
  within.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
