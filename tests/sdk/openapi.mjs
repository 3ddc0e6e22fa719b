// Holds answers against docs/openapi.json.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import Ajv2020 from 'ajv/dist/2020.js';
import formats from 'ajv-formats';

const api = JSON.parse(readFileSync(new URL('../../docs/openapi.json', import.meta.url)));
const ajv = new Ajv2020({ strict: false, allErrors: true });
formats(ajv);
ajv.addSchema(api, 'api');

// `value` has the shape of the schema `name`.
export function fits(name, value) {
  assert.ok(api.components.schemas[name], `no schema ${name}`);
  const check = ajv.compile({ $ref: `api#/components/schemas/${name}` });
  assert.ok(check(value), `${name}: ${ajv.errorsText(check.errors)}\n${JSON.stringify(value)}`);
}

export const paths = Object.keys(api.paths);
