// Writes dist/licenses.txt and assets.sha256: the hashes of the sources and of the assets that were built from them.
// scripts/check_page compares them, so that the assets in the repository always belong to the sources beside them.
import { createHash } from 'node:crypto';
import { readFileSync, readdirSync, statSync, writeFileSync } from 'node:fs';

// The packages of npm that the page has in it, as vite.config.ts found them in the bundle.
const bundled = JSON.parse(readFileSync('node_modules/.bundled.json', 'utf8'));
const inputs = [
  '.npmrc',
  'index.html',
  'manifest.mjs',
  'package-lock.json',
  'package.json',
  'public',
  'src',
  'tsconfig.json',
  'vite.config.ts',
];

function licenseOf(name) {
  const folder = `node_modules/${name}`;
  const file = readdirSync(folder).find((entry) => /^licen[sc]e(\.(md|txt))?$/i.test(entry));
  const { version } = JSON.parse(readFileSync(`${folder}/package.json`, 'utf8'));
  return `${name} ${version}\n\n${readFileSync(`${folder}/${file}`, 'utf8').trim()}\n`;
}

function filesUnder(path) {
  if (!statSync(path).isDirectory()) return [path];
  return readdirSync(path).flatMap((entry) => filesUnder(`${path}/${entry}`));
}

const isTest = (path) => /\.test\.tsx?$/.test(path);
const byBytes = (a, b) => (a < b ? -1 : 1);

writeFileSync('dist/licenses.txt', bundled.map(licenseOf).join(`\n${'-'.repeat(80)}\n\n`));
const paths = [...inputs, 'dist']
  .flatMap(filesUnder)
  .filter((path) => !isTest(path))
  .sort(byBytes);
const lines = paths.map((path) => `${createHash('sha256').update(readFileSync(path)).digest('hex')}  ${path}\n`);
writeFileSync('assets.sha256', lines.join(''));
