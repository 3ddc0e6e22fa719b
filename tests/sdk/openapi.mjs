// Holds answers against docs/openapi.json.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import Ajv2020 from 'ajv/dist/2020.js';
import formats from 'ajv-formats';

const api = JSON.parse(readFileSync(new URL('../../docs/openapi.json', import.meta.url)));
const ajv = new Ajv2020({ strict: false, allErrors: true });
formats(ajv);
ajv.addSchema(api, 'api');

const checks = new Map();

// `value` has the shape of the schema `name`.
export function fits(name, value) {
  assert.ok(api.components.schemas[name], `no schema ${name}`);
  if (!checks.has(name)) checks.set(name, ajv.compile({ $ref: `api#/components/schemas/${name}` }));
  const check = checks.get(name);
  assert.ok(check(value), `${name}: ${ajv.errorsText(check.errors)}\n${JSON.stringify(value)}`);
}

export const paths = Object.keys(api.paths);
