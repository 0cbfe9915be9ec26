import react from '@vitejs/plugin-react';
import { defineConfig } from 'vite';

export default defineConfig({
  root: import.meta.dirname,
  plugins: [react()],
  build: {
    // The styles use light-dark(), which older targets would have compiled away.
    target: ['chrome123', 'firefox120', 'safari17.5'],
    // Fonts are files, because the content security policy allows no data URLs for them.
    assetsInlineLimit: 0,
    modulePreload: false,
    reportCompressedSize: false,
    emptyOutDir: true,
    manifest: true,
  },
});
