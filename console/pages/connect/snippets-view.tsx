import { useState } from 'react';
import { AUTHORITY_FILE } from '../../../shared/branch/verified-url.ts';
import { Button } from '../../components/button.tsx';
import { CopyButton } from '../../components/copy.tsx';
import type { Credentials } from '../../data/resources.ts';
import { connectionOf, hidden, SNIPPETS } from './snippets.ts';
import './connect.css';

interface Props {
  credentials: Credentials;
  snippet?: string | undefined;
  onSnippet?: (id: string) => void;
}

/** The connection as a URL and as code. Copying takes the password along, whether it is shown or not. */
export function Snippets({ credentials, snippet, onSnippet }: Props) {
  const [own, setOwn] = useState('psql');
  const [isShown, setShown] = useState(false);
  const chosen = SNIPPETS.find(({ id }) => id === (snippet ?? own)) ?? SNIPPETS[0];
  if (!chosen) return null;
  const { ca_certificate: authority } = credentials;
  const real = {
    pooled: connectionOf(credentials.database_url, authority !== null),
    direct: connectionOf(credentials.direct_url, authority !== null),
    gateway: window.location.origin,
    pooledKey: credentials.runtime_key,
    directKey: credentials.direct_key,
  };
  const seen = isShown ? real : { ...real, pooled: hidden(real.pooled), direct: hidden(real.direct) };
  const urls = [
    ['Pooled', 'through PgBouncer', seen.pooled.url, real.pooled.url],
    ['Direct', 'to PostgreSQL', seen.direct.url, real.direct.url],
  ] as const;
  return (
    <section className="card" aria-label="Connection">
      <header>
        <h2>Connection</h2>
        <Button compact icon="eye" aria-pressed={isShown} onClick={() => setShown(!isShown)}>
          {isShown ? 'Hide passwords' : 'Show passwords'}
        </Button>
      </header>
      <div className="body stack">
        {urls.map(([label, hint, shown, copied]) => (
          <div className="field" key={label}>
            <span className="label">
              {label} <span className="hint">{hint}</span>
            </span>
            <div className="cli">
              <code title={shown}>{shown}</code>
              <CopyButton text={copied} label={`Copy ${label}`} />
            </div>
          </div>
        ))}
        {authority !== null && (
          <p className="row">
            <span className="grow">
              The host has an authority of its own. Save its certificate as <code>{AUTHORITY_FILE}</code>{' '}
              where your program runs; every example names it.
            </span>
            <a
              className="button"
              download={AUTHORITY_FILE}
              href={`data:application/x-pem-file,${encodeURIComponent(authority)}`}
            >
              Download {AUTHORITY_FILE}
            </a>
          </p>
        )}
        <div className="tabs" role="group" aria-label="Tool or language">
          {SNIPPETS.map(({ id, label }) => (
            <button
              type="button"
              key={id}
              aria-pressed={id === chosen.id}
              onClick={() => (onSnippet ? onSnippet(id) : setOwn(id))}
            >
              {label}
            </button>
          ))}
        </div>
        <div className="snippet">
          {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard */}
          <pre tabIndex={0}>
            <code>{chosen.code(seen)}</code>
          </pre>
          <CopyButton text={chosen.code(real)} label={`Copy ${chosen.label}`} />
        </div>
      </div>
    </section>
  );
}
