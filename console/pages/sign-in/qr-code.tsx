import qrcode from 'qrcode-generator';
import { useMemo } from 'react';

const MARGIN = 3;

/** A QR code as one path, dark on white in both themes because scanners expect it so. */
export function QrCode({ text, label }: { text: string; label: string }) {
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
