import { useEffect, useState } from 'react';
import { Button } from './button.tsx';

const SHOWN_MS = 1_600;

export function CopyButton({
  text,
  label,
  compact = true,
}: {
  text: string;
  label: string;
  compact?: boolean;
}) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const timer = setTimeout(() => setCopied(false), SHOWN_MS);
    return () => clearTimeout(timer);
  }, [copied]);
  return (
    <Button
      compact={compact}
      look="bare"
      icon={copied ? 'check' : 'copy'}
      aria-label={copied ? 'Copied' : label}
      title={label}
      onClick={() => navigator.clipboard.writeText(text).then(() => setCopied(true))}
    />
  );
}

/** The line of the command line tool that does the same. */
export const CommandLine = ({ command }: { command: string }) => (
  <div className="cli">
    <span className="prompt" aria-hidden="true">
      $
    </span>
    {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard */}
    <code tabIndex={0}>{command}</code>
    <CopyButton text={command} label="Copy the command" />
  </div>
);

export const Snippet = ({ code, label }: { code: string; label: string }) => (
  <div className="snippet">
    {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard */}
    <pre tabIndex={0}>
      <code>{code}</code>
    </pre>
    <CopyButton text={code} label={label} />
  </div>
);
