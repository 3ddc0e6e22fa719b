import { writeFileSync } from 'node:fs';
import { type Plugin, defineConfig } from 'vite';

// `npm run dev` serves the page from its sources and sends everything else to a running `gyre serve`.
const server = process.env.GYRE_URL ?? 'http://127.0.0.1:8080';

// Notes which packages of npm the page has in it, for their licenses (manifest.mjs).
const notePackages: Plugin = {
  name: 'note-packages',
  apply: 'build',
  buildEnd() {
    const names = new Set<string>();
    for (const id of this.getModuleIds()) {
      const found = /.*\/node_modules\/((?:@[^/]+\/)?[^/?]+)/.exec(id);
      if (found && !id.includes('\0')) names.add(found[1]!);
    }
    writeFileSync('node_modules/.bundled.json', JSON.stringify([...names].sort()));
  },
};

export default defineConfig({
  plugins: [notePackages],
  esbuild: { jsx: 'automatic', jsxImportSource: 'preact', legalComments: 'none' },
  server: { host: '127.0.0.1', proxy: { '/v1': server, '/health': server, '/ready': server } },
  build: {
    target: 'es2022',
    cssTarget: 'chrome123',
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    rollupOptions: {
      // The names are stable: the server answers each with an ETag, and the history shows what changed.
      output: { entryFileNames: 'page.js', chunkFileNames: '[name].js', assetFileNames: 'page[extname]' },
    },
  },
});
