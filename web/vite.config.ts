import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

const platform = process.env.SANDYARD_URL ?? "http://127.0.0.1:8700";

export default defineConfig({
  plugins: [react(), tailwindcss()],
  resolve: { alias: { "@": new URL("./src", import.meta.url).pathname } },
  build: {
    outDir: "../src/sandyard/platform/static",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0, // the page's content security policy allows no inline assets
    chunkSizeWarningLimit: 800,
    rolldownOptions: {
      output: {
        // otherwise each icon shared by two pages becomes a file, and a page loads dozens of them
        codeSplitting: { groups: [{ name: "icons", test: /node_modules[\\/]lucide-react[\\/]/, minShareCount: 2 }] },
      },
    },
  },
  server: { proxy: { "/api": { target: platform, ws: true, changeOrigin: true }, "/health": platform } },
});
