import { defineConfig } from 'vite';

// `npm run dev` serves the page from its sources and sends everything else to a running `gyre serve`.
const server = process.env.GYRE_URL ?? 'http://127.0.0.1:8080';

export default defineConfig({
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
