import { useMutation, useQuery } from '@tanstack/react-query';
import qrcode from 'qrcode-generator';
import { useEffect, useMemo, useRef, useState } from 'react';
import { Button } from '../../components/button.tsx';
import { CopyButton } from '../../components/copy.tsx';
import { ErrorNote, Loaded, Loading, Note } from '../../components/feedback.tsx';
import { Check, Choice } from '../../components/field.tsx';
import { CodeField, RecoveryCodeField, StepForm, Way } from './form.tsx';
import { nextStep, type Step, signIn } from './steps.ts';

const FACTOR_HINTS = {
  totp: 'Enter the code that your authenticator app shows.',
  email: 'A code was mailed to your address.',
} as const;

interface Props<Name extends Step['name']> {
  step: Extract<Step, { name: Name }>;
  go: (step: Step) => void;
}

interface SecondFactorProps extends Props<'second_factor'> {
  /** Does more with a code than to sign in. */
  verify?: (code: string) => Promise<Step>;
}

export function SecondFactorForm({ step, go, verify }: SecondFactorProps) {
  const { preAuth, method } = step;
  const isMailed = useRef(false);
  useEffect(() => {
    if (method !== 'email' || isMailed.current) return;
    isMailed.current = true;
    // A failure shows when the code is submitted; another one can be requested by signing in again.
    signIn.mailCode(preAuth).catch(() => {});
  }, [method, preAuth]);
  return (
    <StepForm
      go={go}
      action="Continue"
      submit={async (value) =>
        verify ? verify(value('code')) : nextStep(await signIn.verify(preAuth, value('code')))
      }
      more={
        !verify && (
          <Way go={go} to={{ name: 'recover', preAuth, method }}>
            Lost your second factor?
          </Way>
        )
      }
    >
      <p className="quiet">{FACTOR_HINTS[method]}</p>
      <CodeField />
    </StepForm>
  );
}

export const RecoverForm = ({ step, go }: Props<'recover'>) => (
  <StepForm
    go={go}
    action="Continue"
    submit={async (value) =>
      nextStep(await signIn.recover(step.preAuth, value('code'), value('remove') === 'on'))
    }
    more={
      <Way go={go} to={{ ...step, name: 'second_factor' }}>
        Back to the sign-in
      </Way>
    }
  >
    <RecoveryCodeField />
    <Check name="remove" label="The factor is lost. Remove it, so that I can set up another one." />
  </StepForm>
);

export function RecoveryCodes({ codes, go }: { codes: string[]; go: (step: Step) => void }) {
  const text = codes.join('\n');
  return (
    <div className="stack">
      <Note tone="warn">
        Each code signs in once if you lose your second factor. They are not shown again.
      </Note>
      <div className="codes">
        <ul>
          {codes.map((code) => (
            <li key={code}>
              <code>{code}</code>
            </li>
          ))}
        </ul>
        <CopyButton text={text} label="Copy all codes" />
      </div>
      <Button look="primary" className="wide" autoFocus onClick={() => go({ name: 'done' })}>
        I have stored them
      </Button>
    </div>
  );
}

const MARGIN = 3;

/** A QR code as one path, dark on white in both themes because scanners expect it so. */
function QrCode({ text, label }: { text: string; label: string }) {
  const { path, size } = useMemo(() => {
    const code = qrcode(0, 'M');
    code.addData(text);
    code.make();
    const modules = code.getModuleCount();
    const cells = Array.from({ length: modules ** 2 }, (_, index) => [
      Math.floor(index / modules),
      index % modules,
    ]).filter(([row = 0, column = 0]) => code.isDark(row, column));
    return {
      path: cells.map(([row = 0, column = 0]) => `M${column + MARGIN} ${row + MARGIN}h1v1h-1z`).join(''),
      size: modules + 2 * MARGIN,
    };
  }, [text]);
  return (
    <svg
      className="qr"
      viewBox={`0 0 ${size} ${size}`}
      role="img"
      aria-label={label}
      shapeRendering="crispEdges"
    >
      <rect width={size} height={size} fill="#fff" />
      <path d={path} fill="#111" />
    </svg>
  );
}

const METHODS = [
  ['totp', 'Authenticator app'],
  ['email', 'Mailed codes'],
] as const;

/** The secret for an authenticator app, as a picture and as text. */
function AppSecret({ preAuth }: { preAuth: string }) {
  const secret = useQuery({
    queryKey: ['second-factor-secret', preAuth],
    queryFn: () => signIn.secret(preAuth),
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 0,
  });
  return (
    <Loaded query={secret}>
      {({ secret, totp_uri }) => (
        <div className="app-secret">
          <QrCode text={totp_uri} label="QR code for the authenticator app" />
          <div className="grow">
            <p>Scan the picture with your authenticator app, or enter the secret.</p>
            <p className="row secret">
              <code>{secret.match(/.{1,4}/g)?.join(' ')}</code>
              <CopyButton text={secret} label="Copy the secret" />
            </p>
          </div>
        </div>
      )}
    </Loaded>
  );
}

/** Of this browser. */
const ASKED = 'asked-for-second-factor';

/** Asks for a second factor once. Where the gateway requires one, the question cannot be left. */
export function AskForFactor({ preAuth, go }: { preAuth: string; go: (step: Step) => void }) {
  const [isWanted, setWanted] = useState(false);
  const { mutate: skip, ...skipping } = useMutation({
    mutationFn: () => signIn.skip(preAuth),
    onSuccess: (login) => {
      localStorage.setItem(ASKED, new Date().toISOString());
      go(nextStep(login));
    },
  });
  const wasAsked = localStorage.getItem(ASKED) !== null;
  useEffect(() => {
    if (wasAsked) skip();
  }, [wasAsked, skip]);
  if (isWanted || (wasAsked && skipping.isError)) return <SetUp preAuth={preAuth} go={go} />;
  if (wasAsked) return <Loading label="Signing in" />;
  return (
    <div className="stack">
      <p>
        A second factor keeps others out even if they know your password. You can also set one up later, on
        the page of your account.
      </p>
      {skipping.isError && <ErrorNote error={skipping.error} />}
      <Button look="primary" className="wide" onClick={() => setWanted(true)}>
        Set up a second factor
      </Button>
      <Button look="bare" busy={skipping.isPending} onClick={() => skip()}>
        Not now
      </Button>
    </div>
  );
}

export function SetUp({ preAuth, go }: { preAuth: string; go: (step: Step) => void }) {
  const [method, setMethod] = useState<'totp' | 'email'>('totp');
  const skip = useMutation({
    mutationFn: () => signIn.skip(preAuth),
    onSuccess: (login) => go(nextStep(login)),
  });
  const mail = useMutation({ mutationFn: () => signIn.mailCode(preAuth) });
  const choose = (chosen: 'totp' | 'email') => {
    setMethod(chosen);
    if (chosen === 'email' && !mail.isPending && !mail.isSuccess) mail.mutate();
  };
  return (
    <div className="stack">
      <p className="quiet">A second factor keeps others out even if they know your password.</p>
      <Choice legend="Second factor" name="method" options={METHODS} value={method} onChange={choose} />
      {method === 'totp' ? (
        <AppSecret preAuth={preAuth} />
      ) : (
        <p role="status">{mail.isSuccess ? 'A code was mailed to your address.' : 'Sending a code'}</p>
      )}
      {mail.isError && <ErrorNote error={mail.error} />}
      {skip.isError && <ErrorNote error={skip.error} />}
      <StepForm
        go={go}
        action="Turn on"
        submit={async (value) => {
          const { recovery_codes: codes } = await signIn.enrol(preAuth, value('code'));
          return { name: 'recovery_codes', codes };
        }}
        more={
          <Button look="bare" compact busy={skip.isPending} onClick={() => skip.mutate()}>
            Not now
          </Button>
        }
      >
        <CodeField label="Code to confirm" />
      </StepForm>
    </div>
  );
}
