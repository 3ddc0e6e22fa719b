import { useState } from 'preact/hooks';
import { KeyForm } from '../shell/key_form';
import { type Conversation, type Sampling, kServerSampling } from './conversation';
import { readTools } from './tools';

interface Props {
  conversation: Conversation;
  models: string[];
  defaults: Sampling; // what the server takes where nothing is set
  onChange: (change: (c: Conversation) => Conversation) => void;
  onDone: () => void;
}

interface Field {
  name: keyof Sampling;
  label: string;
  hint: string;
  min: number;
  max?: number;
  step: number | 'any';
}

const kFields: Field[] = [
  {
    name: 'temperature',
    label: 'Temperature',
    hint: '0 always takes the likeliest token.',
    min: 0,
    max: 2,
    step: 'any',
  },
  { name: 'top_p', label: 'Top p', hint: 'Keeps the likeliest tokens up to this share.', min: 0, max: 1, step: 'any' },
  { name: 'top_k', label: 'Top k', hint: 'Keeps this many tokens; 0 keeps all.', min: 0, step: 1 },
  {
    name: 'min_p',
    label: 'Min p',
    hint: 'Drops tokens less likely than this share of the best.',
    min: 0,
    max: 1,
    step: 'any',
  },
  { name: 'max_tokens', label: 'Max tokens', hint: 'The answer ends there.', min: 1, step: 1 },
  {
    name: 'seed',
    label: 'Seed',
    hint: 'The same seed gives the same answer.',
    min: 0,
    max: Number.MAX_SAFE_INTEGER,
    step: 1,
  },
];

// What differs from the server's choice, in few words; "" if nothing does.
export function settingsInWords(conversation: Conversation): string {
  const words: string[] = [];
  const { temperature, seed } = conversation.sampling;
  if (temperature !== null) words.push(`temperature ${temperature}`);
  if (seed !== null) words.push(`seed ${seed}`);
  if (conversation.system.trim()) words.push('system prompt');
  if (conversation.tools.trim()) words.push('tools');
  return words.join(', ');
}

function NumberField({
  field,
  value,
  byDefault,
  onChange,
}: {
  field: Field;
  value: number | null;
  byDefault: number | null;
  onChange: (value: number | null) => void;
}) {
  const id = `setting-${field.name}`;
  const onInput = (event: Event & { currentTarget: HTMLInputElement }) => {
    const input = event.currentTarget;
    if (input.value === '') onChange(null);
    else if (input.validity.valid) onChange(input.valueAsNumber);
  };
  return (
    <div class="field">
      <label for={id}>{field.label}</label>
      <input
        id={id}
        type="number"
        inputMode="decimal"
        min={field.min}
        max={field.max}
        step={field.step}
        value={value ?? ''}
        placeholder={byDefault === null ? 'server’s choice' : `server’s choice: ${byDefault}`}
        aria-describedby={`${id}-hint`}
        onInput={onInput}
      />
      <small id={`${id}-hint`}>{field.hint}</small>
    </div>
  );
}

function ToolsField({ conversation, onChange }: Pick<Props, 'conversation' | 'onChange'>) {
  const read = readTools(conversation.tools);
  const fault = typeof read === 'string' ? read : '';
  const [open] = useState(conversation.tools !== ''); // at first: a field that gets empty stays in sight
  return (
    <details class="more-settings" open={open}>
      <summary>Tools</summary>
      <div class="field">
        <label for="tools">Tools as JSON</label>
        <textarea
          id="tools"
          class="code"
          rows={6}
          spellcheck={false}
          value={conversation.tools}
          placeholder='[{"type": "function", "function": {"name": "…", "description": "…", "parameters": {…}}}]'
          aria-describedby="tools-hint"
          aria-invalid={fault !== ''}
          onInput={(event) => {
            const tools = event.currentTarget.value;
            onChange((c) => ({ ...c, tools }));
          }}
        />
        <small id="tools-hint" class={fault && 'wrong'}>
          {fault || 'A list as OpenAI’s API has it. The page shows what the model calls and runs nothing.'}
        </small>
      </div>
    </details>
  );
}

export function SettingsForm({ conversation, models, defaults, onChange, onDone }: Props) {
  const setSampling = (name: keyof Sampling, value: number | null) =>
    onChange((c) => ({ ...c, sampling: { ...c.sampling, [name]: value } }));
  return (
    <div class="settings">
      <div class="field">
        <label for="system">System prompt</label>
        <textarea
          id="system"
          rows={4}
          value={conversation.system}
          placeholder="How the model is to answer, for example: Answer in one sentence."
          onInput={(event) => {
            const system = event.currentTarget.value;
            onChange((c) => ({ ...c, system }));
          }}
        />
      </div>
      {models.length > 1 && (
        <div class="field">
          <label for="model">Model</label>
          <select
            id="model"
            value={conversation.model || models[0]}
            onChange={(event) => {
              const model = event.currentTarget.value;
              onChange((c) => ({ ...c, model }));
            }}
          >
            {models.map((model) => (
              <option value={model}>{model}</option>
            ))}
          </select>
        </div>
      )}
      <div class="fields">
        {kFields.map((field) => (
          <NumberField
            key={field.name}
            field={field}
            value={conversation.sampling[field.name]}
            byDefault={defaults[field.name]}
            onChange={(value) => setSampling(field.name, value)}
          />
        ))}
      </div>
      <div class="row">
        <button type="button" onClick={() => onChange((c) => ({ ...c, sampling: kServerSampling }))}>
          Leave all to the server
        </button>
      </div>
      <ToolsField key={conversation.id} conversation={conversation} onChange={onChange} />
      <details class="more-settings">
        <summary>API key</summary>
        <KeyForm onDone={onDone} />
      </details>
    </div>
  );
}
