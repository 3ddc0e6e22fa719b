// Asks for an API key once the server wants one.
import { useState } from 'preact/hooks';
import { apiKey, keepApiKey, keyNeeded } from '../lib/api';
import { useStore } from '../lib/store';

export function KeyForm({ onDone }: { onDone?: () => void }) {
  const kept = useStore(apiKey);
  const [key, setKey] = useState(kept);
  const submit = (event: Event) => {
    event.preventDefault();
    keepApiKey(key.trim());
    onDone?.();
  };
  return (
    <form class="key-form" onSubmit={submit}>
      <label for="api-key">API key</label>
      <input
        id="api-key"
        type="password"
        autoComplete="off"
        spellcheck={false}
        value={key}
        onInput={(event) => setKey(event.currentTarget.value)}
      />
      <button type="submit" class="primary">
        Keep it in this browser
      </button>
    </form>
  );
}

export function KeyBanner() {
  const needed = useStore(keyNeeded);
  const kept = useStore(apiKey);
  if (!needed) return null;
  return (
    <div class="banner" role="alert">
      <p>
        {kept ? 'The server does not accept the API key that this browser keeps.' : 'This server wants an API key.'}
      </p>
      <KeyForm />
    </div>
  );
}
