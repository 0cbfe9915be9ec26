import { useQuery } from '@tanstack/react-query';
import { useEffect, useState } from 'react';
import { projectsQuery, projectWord, SELDOM_MS } from '../data/resources.ts';
import { Button } from './button.tsx';
import { useParameters } from './page.tsx';

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

function useProjectWord(): string {
  const { projectId = '' } = useParameters();
  const projects = useQuery({ ...projectsQuery(), staleTime: SELDOM_MS, refetchInterval: false }).data;
  return projectWord(projects ?? [], projectId);
}

/** A line of the command line tool, or how it is made for what the tool calls the project of the page. */
export type Command = string | ((project: string) => string);

/** The line of the command line tool that does the same. */
export function CommandLine({ command }: { command: Command }) {
  const project = useProjectWord();
  const text = typeof command === 'string' ? command : command(project);
  return (
    <div className="cli command-line">
      <span className="prompt" aria-hidden="true">
        $
      </span>
      <code>{text}</code>
      <CopyButton text={text} label="Copy the command" />
    </div>
  );
}

export const Snippet = ({ code, label }: { code: string; label: string }) => (
  <div className="snippet">
    {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard */}
    <pre tabIndex={0}>
      <code>{code}</code>
    </pre>
    <CopyButton text={code} label={label} />
  </div>
);
