/**
 * React Aria adds one `<style>` element to the page. The policy allows exactly that text; a browser test fails when
 * another version of the library adds another one.
 */
const REACT_ARIA_STYLE = "'sha256-38RhXrc7EdReTKsOm23ZPOCUgniTUUcjky8QOOrQx6o='";

const POLICY = {
  'default-src': "'none'",
  'script-src': "'self'",
  'style-src': `'self' ${REACT_ARIA_STYLE}`,
  'font-src': "'self'",
  'img-src': "'self' data:",
  'connect-src': "'self'",
  'form-action': "'self'",
  'base-uri': "'none'",
  'frame-ancestors': "'none'",
  'require-trusted-types-for': "'script'",
};

const EVERY_PAGE = {
  'Content-Security-Policy': Object.entries(POLICY)
    .map(([directive, sources]) => `${directive} ${sources}`)
    .join('; '),
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Permissions-Policy': 'camera=(), geolocation=(), microphone=()',
  'Referrer-Policy': 'no-referrer',
  'X-Content-Type-Options': 'nosniff',
  'X-Frame-Options': 'DENY',
};

/** The names of these files contain a hash of their content. */
const HASHED_FILES = { 'Cache-Control': 'public, max-age=31536000, immutable' };

const rule = (path: string, headers: Record<string, string>) =>
  [path, ...Object.entries(headers).map(([name, value]) => `  ${name}: ${value}`)].join('\n');

/** The file `_headers` of the static assets. */
export const HEADERS = `${rule('/*', EVERY_PAGE)}\n${rule('/assets/*', HASHED_FILES)}\n`;
